#include "format/ggml_type.h"

#include "base/check.h"

namespace dormouse::format {
namespace {

struct Entry {
  GgmlType type;
  BlockShape block;
  std::string_view name;
};

constexpr Entry kEntries[] = {
    {GgmlType::kF32, {1, 4}, "F32"},       {GgmlType::kF16, {1, 2}, "F16"},
    {GgmlType::kQ4_0, {32, 18}, "Q4_0"},   {GgmlType::kQ4_1, {32, 20}, "Q4_1"},
    {GgmlType::kQ5_0, {32, 22}, "Q5_0"},   {GgmlType::kQ5_1, {32, 24}, "Q5_1"},
    {GgmlType::kQ8_0, {32, 34}, "Q8_0"},   {GgmlType::kQ4_K, {256, 144}, "Q4_K"},
    {GgmlType::kQ5_K, {256, 176}, "Q5_K"}, {GgmlType::kQ6_K, {256, 210}, "Q6_K"},
    {GgmlType::kBF16, {1, 2}, "BF16"},
};

const Entry& entry_of(GgmlType type) {
  for (const Entry& entry : kEntries)
    if (entry.type == type)
      return entry;
  DM_CHECK(false, "not a GgmlType");
  return kEntries[0];
}

}  // namespace

std::optional<GgmlType> ggml_type_from_id(std::uint32_t id) {
  for (const Entry& entry : kEntries)
    if (static_cast<std::uint32_t>(entry.type) == id)
      return entry.type;
  return std::nullopt;
}

BlockShape block_shape(GgmlType type) {
  return entry_of(type).block;
}

std::string_view type_name(GgmlType type) {
  return entry_of(type).name;
}

}  // namespace dormouse::format
