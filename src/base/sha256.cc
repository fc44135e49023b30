#include "base/sha256.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"

namespace dormouse {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    DM_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
             "SHA-256 is part of every OpenSSL");
  }
  void update(std::span<const std::byte> bytes) {
    DM_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1,
             "a digest of memory cannot fail");
  }
  std::string finish_hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    DM_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1,
             "a digest of memory cannot fail");
    std::string hex;
    for (unsigned int i = 0; i < size; ++i)
      hex += fmt::format("{:02x}", digest[i]);
    return hex;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 sha;
  sha.update(bytes);
  return sha.finish_hex();
}

Result<std::string> sha256_file_hex(const std::string& path) {
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rbe"));
  if (!file)
    return fail(ErrorCode::kNotFound,
                fmt::format("cannot open {}: {}. Check the path and its permissions.", path,
                            std::strerror(errno)));
  Sha256 sha;
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  std::size_t count = 0;
  while ((count = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0)
    sha.update(std::span(buffer).first(count));
  if (std::ferror(file.get()) != 0)
    return fail(ErrorCode::kDataLoss,
                fmt::format("cannot read {}: {}. Check the disk.", path, std::strerror(errno)));
  return sha.finish_hex();
}

}  // namespace dormouse
