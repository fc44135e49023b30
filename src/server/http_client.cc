#include "server/http_client.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/check.h"

namespace dormouse::server {
namespace {

constexpr std::size_t kMaxHeadBytes = 64 << 10;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

template <class Integer>
bool parse_number(std::string_view text, Integer& value, int base = 10) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && stop == text.data() + text.size();
}

tl::unexpected<Error> not_http(std::string_view what) {
  return fail(ErrorCode::kDataLoss, fmt::format("the server's answer is not HTTP: {}", what));
}

std::optional<std::string_view> header_of(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers)
    if (key == name)
      return value;
  return std::nullopt;
}

tl::unexpected<Error> out_of_time() {
  return fail(ErrorCode::kDeadlineExceeded, "the server did not answer in time");
}

// Of a call to the system on a socket, by its errno.
tl::unexpected<Error> broken(int cause) {
  if (cause == EAGAIN || cause == EWOULDBLOCK)
    return out_of_time();
  return fail(ErrorCode::kUnavailable,
              fmt::format("the connection broke: {}", std::strerror(cause)));
}

// What came of a connection that is being made, as an errno.
int wait_connected(int socket, std::chrono::milliseconds limit) {
  pollfd entry{.fd = socket, .events = POLLOUT, .revents = 0};
  const int wait = limit.count() > 0 ? static_cast<int>(limit.count()) : -1;
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, wait);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0)
    return ready == 0 ? ETIMEDOUT : errno;
  int cause = 0;
  socklen_t size = sizeof cause;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &cause, &size);
  return cause;
}

bool is_host_name(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::string_view kRest = ".-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return !name.empty() && name[0] != '-' &&
         name.find_first_not_of(kDigits) != std::string_view::npos &&
         std::ranges::all_of(name, [&](char c) {
           return kDigits.find(c) != std::string_view::npos ||
                  kRest.find(c) != std::string_view::npos;
         });
}

}  // namespace

Result<Address> parse_url(std::string_view url) {
  const auto invalid = [&] {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is not a URL like http://127.0.0.1:8000", url), "url");
  };
  std::string_view rest = url;
  if (rest.starts_with("http://"))
    rest.remove_prefix(7);
  if (rest.ends_with('/'))
    rest.remove_suffix(1);
  if (rest.empty() || rest.find('/') != std::string_view::npos)
    return invalid();
  Address address;
  std::string_view port;
  if (rest[0] == '[') {
    const std::size_t close = rest.find(']');
    if (close == std::string_view::npos)
      return invalid();
    address.host = rest.substr(1, close - 1);
    port = rest.substr(close + 1);
  } else {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    address.host = rest.substr(0, colon);
    port = rest.substr(colon);
    if (!is_host_name(address.host))
      return invalid();
  }
  if (!port.empty() &&
      (port[0] != ':' || !parse_number(port.substr(1), address.port) || address.port == 0))
    return invalid();
  return address;
}

Result<HttpClient> HttpClient::connect(const Address& address, std::chrono::milliseconds timeout) {
  HttpClient client;
  DM_TRY(client.open(address, timeout));
  return client;
}

Status HttpClient::open(const Address& address, std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  host_ = fmt::format("{}:{}", address.host, address.port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0)
    return fail(ErrorCode::kUnavailable,
                fmt::format("cannot resolve {}: {}", address.host, gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  Status reached;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    reached = try_address(*item);
    if (reached)
      return {};
  }
  return fail(ErrorCode::kUnavailable, fmt::format("cannot reach {} port {}: {}", address.host,
                                                   address.port, reached.error().message));
}

Status HttpClient::try_address(const addrinfo& address) {
  std::chrono::milliseconds limit{};
  DM_TRY_ASSIGN(limit, wait_limit());
  int cause = 0;
  {
    const std::lock_guard lock(mutex_);
    if (interrupted_)
      return fail(ErrorCode::kCancelled, "interrupted");
    socket_ = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket_ < 0 || ::connect(socket_, address.ai_addr, address.ai_addrlen) != 0)
      cause = errno;
  }
  if (cause == EINPROGRESS)
    cause = wait_connected(socket_, limit);
  if (cause != 0) {
    close();
    return fail(ErrorCode::kUnavailable, std::strerror(cause));
  }
  const int yes = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::fcntl(socket_, F_SETFL, 0);  // its calls wait, each as long as it is armed for
  return {};
}

HttpClient::HttpClient(HttpClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      interrupted_(other.interrupted_),
      host_(std::move(other.host_)),
      buffer_(std::move(other.buffer_)),
      timeout_(other.timeout_),
      deadline_(other.deadline_),
      max_body_bytes_(other.max_body_bytes_) {}

HttpClient& HttpClient::operator=(HttpClient&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(interrupted_, other.interrupted_);
  std::swap(host_, other.host_);
  std::swap(buffer_, other.buffer_);
  std::swap(timeout_, other.timeout_);
  std::swap(deadline_, other.deadline_);
  std::swap(max_body_bytes_, other.max_body_bytes_);
  return *this;
}

HttpClient::~HttpClient() {
  close();
}

void HttpClient::close() {
  const std::lock_guard lock(mutex_);
  if (socket_ >= 0)
    ::close(std::exchange(socket_, -1));
}

void HttpClient::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (socket_ >= 0)
    ::shutdown(socket_, SHUT_RDWR);
}

Result<std::chrono::milliseconds> HttpClient::wait_limit() const {
  using std::chrono::milliseconds;
  if (!deadline_)
    return timeout_;
  const auto left = std::chrono::ceil<milliseconds>(*deadline_ - std::chrono::steady_clock::now());
  if (left <= milliseconds(0))
    return out_of_time();
  return timeout_ > milliseconds(0) ? std::min(timeout_, left) : left;
}

Status HttpClient::arm(int option) const {
  std::chrono::milliseconds limit{};
  DM_TRY_ASSIGN(limit, wait_limit());
  const timeval wait{.tv_sec = limit.count() / 1000,
                     .tv_usec = static_cast<suseconds_t>(limit.count() % 1000 * 1000)};
  setsockopt(socket_, SOL_SOCKET, option, &wait, sizeof wait);
  return {};
}

Result<HttpResponse> HttpClient::call(std::string_view method, std::string_view target,
                                      std::string_view body, const HeaderList& headers) {
  std::string received;
  auto response = stream(method, target, body, headers, [&](std::string_view part) {
    received += part;
    return true;
  });
  if (response)
    response->body = std::move(received);
  return response;
}

Result<HttpResponse> HttpClient::stream(std::string_view method, std::string_view target,
                                        std::string_view body, const HeaderList& headers,
                                        const BodySink& sink) {
  return stream(method, target, body, headers, {}, sink);
}

Result<HttpResponse> HttpClient::stream(std::string_view method, std::string_view target,
                                        std::string_view body, const HeaderList& headers,
                                        const HeadSink& head, const BodySink& sink) {
  std::string request = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", method, target, host_);
  for (const auto& [name, value] : headers)
    request += fmt::format("{}: {}\r\n", name, value);
  if (!body.empty())
    request += "Content-Type: application/json\r\n";
  if (!body.empty() || method == "POST")
    request += fmt::format("Content-Length: {}\r\n", body.size());
  request.append("\r\n").append(body);
  DM_TRY(send(request));
  return receive_to(head, sink, method != "HEAD");
}

Status HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    DM_TRY(arm(SO_SNDTIMEO));
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return broken(errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<HttpResponse> HttpClient::receive() {
  std::string received;
  auto response = receive_to({}, [&](std::string_view part) {
    received += part;
    return true;
  });
  if (response)
    response->body = std::move(received);
  return response;
}

Result<HttpResponse> HttpClient::receive_to(const HeadSink& head, const BodySink& sink,
                                            bool has_body) {
  HttpResponse response;
  do {
    DM_TRY_ASSIGN(response, read_head());
  } while (response.status == 100);
  response.content_type = header_of(response, "content-type").value_or("");
  if (head)
    head(response);
  if (has_body)
    DM_TRY(read_body(response, sink));
  return response;
}

Status HttpClient::read_body(const HttpResponse& head, const BodySink& sink) {
  body_bytes_ = 0;
  if (header_of(head, "transfer-encoding") == "chunked")
    return read_chunked(sink);
  const auto length = header_of(head, "content-length");
  if (!length)
    return read_to_end(sink);
  std::uint64_t bytes = 0;
  if (!parse_number(*length, bytes))
    return not_http("a broken Content-Length");
  return read_sized(bytes, sink);
}

Result<HttpResponse> HttpClient::read_head() {
  std::string line;
  DM_TRY_ASSIGN(line, read_line());
  HttpResponse response;
  if (!line.starts_with("HTTP/1.") || line.size() < 12 ||
      !parse_number(std::string_view(line).substr(9, 3), response.status))
    return not_http("no status line");
  std::size_t bytes = line.size();
  while (true) {
    DM_TRY_ASSIGN(line, read_line());
    if (line.empty())
      return response;
    bytes += line.size();
    if (bytes > kMaxHeadBytes)
      return not_http("headers without end");
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos)
      return not_http("a broken header");
    const std::size_t value = std::min(line.find_first_not_of(' ', colon + 1), line.size());
    response.headers.emplace_back(lower(line.substr(0, colon)), line.substr(value));
  }
}

Status HttpClient::take(std::string_view part, const BodySink& sink) {
  body_bytes_ += part.size();
  if (body_bytes_ > max_body_bytes_)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("the server's answer has more than {} bytes", max_body_bytes_));
  if (sink(part))
    return {};
  interrupt();  // not closed: another thread may be about to interrupt
  return fail(ErrorCode::kCancelled, "the reader ended the call");
}

Status HttpClient::read_to_end(const BodySink& sink) {
  for (;;) {
    if (!buffer_.empty())
      DM_TRY(take(std::exchange(buffer_, {}), sink));
    const Status filled = fill();
    if (!filled && filled.error().code == ErrorCode::kUnavailable)
      break;  // that is how such a body ends
    DM_TRY(filled);
  }
  interrupt();
  return {};
}

Status HttpClient::read_sized(std::uint64_t bytes, const BodySink& sink) {
  while (bytes > 0) {
    if (buffer_.empty())
      DM_TRY(fill());
    const std::size_t n = std::min<std::uint64_t>(bytes, buffer_.size());
    DM_TRY(take(std::string_view(buffer_).substr(0, n), sink));
    buffer_.erase(0, n);
    bytes -= n;
  }
  return {};
}

Status HttpClient::read_chunked(const BodySink& sink) {
  while (true) {
    std::string line;
    DM_TRY_ASSIGN(line, read_line());
    std::uint64_t size = 0;
    if (!parse_number(std::string_view(line), size, 16))
      return not_http("a broken chunk");
    DM_TRY(read_sized(size, sink));
    DM_TRY_ASSIGN(line, read_line());
    if (size == 0)
      return {};
  }
}

Result<std::string> HttpClient::read_line() {
  std::size_t end = 0;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (buffer_.size() > kMaxHeadBytes)
      return not_http("a line without end");
    DM_TRY(fill());
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

Status HttpClient::fill() {
  char bytes[16 << 10];
  ssize_t n = 0;
  do {
    DM_TRY(arm(SO_RCVTIMEO));
    n = ::recv(socket_, bytes, sizeof bytes, 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0)
    return broken(errno);
  if (n == 0)
    return fail(ErrorCode::kUnavailable, "the server closed the connection");
  buffer_.append(bytes, static_cast<std::size_t>(n));
  return {};
}

}  // namespace dormouse::server
