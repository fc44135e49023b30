// A host copy of device memory: ordinary anonymous pages, so that it never counts as device memory.
//
// Owns: its pages; gives them back when destroyed. Threads: one.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "dormouse/result.h"

namespace dormouse {

class HostBackup {
 public:
  static Result<std::unique_ptr<HostBackup>> create(std::size_t size);
  ~HostBackup();
  HostBackup(const HostBackup&) = delete;
  HostBackup& operator=(const HostBackup&) = delete;

  std::span<std::byte> bytes() { return {data_, size_}; }
  std::size_t size() const { return size_; }

 private:
  HostBackup(std::byte* data, std::size_t size) : data_(data), size_(size) {}

  std::byte* data_;
  std::size_t size_;
};

}  // namespace dormouse
