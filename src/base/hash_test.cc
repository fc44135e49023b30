#include "base/hash.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/sha256.h"

namespace dormouse {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Sha256, AgreesWithThePublishedExamples) {
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(bytes_of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, OfAFileIsThatOfItsBytes) {
  const std::string path = ::testing::TempDir() + "dormouse_sha256_test";
  const std::string content(3'000'001, 'x');
  std::ofstream(path, std::ios::binary) << content;
  EXPECT_EQ(sha256_file_hex(path).value(), sha256_hex(bytes_of(content)));
  std::remove(path.c_str());
  EXPECT_EQ(sha256_file_hex(path).error().code, ErrorCode::kNotFound);
}

TEST(Hash128, IsThePublishedXxh3OfTheEmptyInput) {
  EXPECT_EQ(hash128({}), (Hash128{0x6001c324468d497f, 0x99aa06d3014798d8}));
  EXPECT_EQ(hash64({}), 0x2d06800538d394c2);
}

TEST(Hash128, DependsOnEveryByteAndOnTheSeed) {
  std::string text(100, 'a');
  const Hash128 original = hash128(bytes_of(text));
  for (char& c : text) {
    c = 'b';
    EXPECT_NE(hash128(bytes_of(text)), original);
    c = 'a';
  }
  EXPECT_EQ(hash128(bytes_of(text)), original);
  EXPECT_NE(hash128(bytes_of(text), 1), original);
}

}  // namespace
}  // namespace dormouse
