#include "router/cancellation.h"

namespace dormouse::router {

void Cancellation::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (client_ != nullptr)
    client_->interrupt();
}

bool Cancellation::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

Cancellation::Watch::Watch(Cancellation& cancellation, server::HttpClient& client)
    : cancellation_(cancellation) {
  const std::lock_guard lock(cancellation_.mutex_);
  cancellation_.client_ = &client;
  if (cancellation_.cancelled_)
    client.interrupt();
}

Cancellation::Watch::~Watch() {
  const std::lock_guard lock(cancellation_.mutex_);
  cancellation_.client_ = nullptr;
}

}  // namespace dormouse::router
