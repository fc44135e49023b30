// The routes that deal in text: completions, chat, tokenize, detokenize, and aborting what they
// started.
//
// Threads: completions, chat, tokenize and detokenize parse and tokenise, so not on the I/O thread.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "dormouse/engine.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/request_registry.h"

namespace dormouse::server {

class OpenAiRoutes {
 public:
  explicit OpenAiRoutes(Engine& engine);

  void completions(HttpRequest request, std::shared_ptr<ResponseWriter> writer);
  void chat_completions(HttpRequest request, std::shared_ptr<ResponseWriter> writer);
  HttpResponse tokenize(const HttpRequest& request);
  HttpResponse detokenize(const HttpRequest& request);
  // JSON request_ids: of the replies, or X-Request-Id; none means all.
  HttpResponse abort_requests(const HttpRequest& request);
  // The same as SGLang has it: JSON rid, of one or of several, or abort_all.
  HttpResponse abort_request(const HttpRequest& request);
  HttpResponse load() const;

  const RequestMetrics& metrics() const { return *metrics_; }

 private:
  using Reader = Result<OpenAiRequest> (*)(const Json&);
  void serve(const HttpRequest& http, const std::shared_ptr<ResponseWriter>& writer, Reader read);
  Status start(const HttpRequest& http, const std::shared_ptr<ResponseWriter>& writer, Reader read);
  HttpResponse abort_everything();
  HttpResponse abort_these(const std::vector<std::string>& ids);
  void warn_once(const std::vector<std::string>& unknown_fields);

  Engine& engine_;
  const std::shared_ptr<RequestMetrics> metrics_;
  const std::shared_ptr<RequestRegistry> registry_;
  std::mutex warned_mutex_;
  std::set<std::string> warned_;
};

}  // namespace dormouse::server
