// The end of a request whose client has left: it ends the call under way, and those to come.
//
// Threads: any.
#pragma once

#include <mutex>

#include "server/http_client.h"

namespace dormouse::router {

class Cancellation {
 public:
  void cancel();
  bool cancelled() const;

  // Lets `cancel` reach a client. The client must outlive this.
  class Watch {
   public:
    Watch(Cancellation& cancellation, server::HttpClient& client);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Cancellation& cancellation_;
  };

 private:
  mutable std::mutex mutex_;
  bool cancelled_ = false;
  server::HttpClient* client_ = nullptr;
};

}  // namespace dormouse::router
