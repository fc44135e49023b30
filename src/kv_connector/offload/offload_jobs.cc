#include "kv_connector/offload/offload_jobs.h"

#include <limits>

#include "base/check.h"
#include "base/json.h"

namespace dormouse {
namespace {

constexpr JsonLimits kLimits = {.depth = 8, .values = std::size_t{1} << 24};

tl::unexpected<Error> malformed() {
  return fail(ErrorCode::kDataLoss, "a message between the halves of a connector is malformed");
}

// Walks an array and remembers whether everything was of the kind asked for.
class Items {
 public:
  explicit Items(const Json& array) : items_(array.array()), valid_(items_ != nullptr) {}

  const Json& next() {
    static const Json kNull;
    if (!valid_ || at_ == items_->size()) {
      valid_ = false;
      return kNull;
    }
    return (*items_)[at_++];
  }
  template <class Integer>
  Integer integer() {
    const Json& value = next();
    const std::uint64_t number = value.as_unsigned();
    valid_ = valid_ && value.is_integer() && number <= std::numeric_limits<Integer>::max();
    return static_cast<Integer>(number);
  }
  std::string string() {
    const std::string* text = next().string();
    valid_ = valid_ && text != nullptr;
    return valid_ ? *text : std::string();
  }
  bool more() const { return valid_ && at_ < items_->size(); }
  bool valid() const { return valid_; }

 private:
  const Json::Array* items_;
  std::size_t at_ = 0;
  bool valid_;
};

Json to_json(const OffloadJob& job) {
  Json::Array generations(job.generations.begin(), job.generations.end());
  Json::Array blocks;
  for (const OffloadBlock& each : job.blocks)
    blocks.push_back(
        Json::Array{each.key, each.slot ? Json(*each.slot) : Json(nullptr), each.block});
  return Json::Array{job.id, job.load, job.request, std::move(generations), std::move(blocks)};
}

bool read_job(const Json& json, OffloadJob& job) {
  Items items(json);
  job.id = items.integer<std::uint64_t>();
  const bool* load = items.next().boolean();
  job.load = load != nullptr && *load;
  job.request = items.integer<RequestId>();
  Items generations(items.next());
  while (generations.more())
    job.generations.push_back(generations.string());
  Items blocks(items.next());
  while (blocks.more()) {
    Items fields(blocks.next());
    OffloadBlock block{.key = fields.string()};
    const Json& slot = fields.next();
    if (!slot.is_null())
      block.slot = static_cast<std::uint32_t>(slot.as_unsigned());
    block.block = fields.integer<BlockId>();
    if (!fields.valid())
      return false;
    job.blocks.push_back(std::move(block));
  }
  return load != nullptr && items.valid() && generations.valid() && blocks.valid();
}

}  // namespace

std::string encode(const std::vector<OffloadJob>& jobs) {
  Json::Array array;
  for (const OffloadJob& job : jobs)
    array.push_back(to_json(job));
  return to_msgpack(array);
}

Result<std::vector<OffloadJob>> decode_offload_jobs(const std::string& bytes) {
  DM_TRY_ASSIGN(const Json json, parse_msgpack(bytes, kLimits));
  std::vector<OffloadJob> jobs;
  Items items(json);
  while (items.more())
    if (!read_job(items.next(), jobs.emplace_back()))
      return malformed();
  if (!items.valid())
    return malformed();
  return jobs;
}

std::string encode(const OffloadReport& report) {
  Json::Array ended;
  for (const OffloadReport::Ended& each : report.ended)
    ended.push_back(Json::Array{each.job, each.done});
  return to_msgpack(Json::Array{std::move(ended),
                                Json::Array(report.written.begin(), report.written.end()),
                                Json::Array(report.bad.begin(), report.bad.end())});
}

Result<OffloadReport> decode_offload_report(const std::string& bytes) {
  DM_TRY_ASSIGN(const Json json, parse_msgpack(bytes, kLimits));
  OffloadReport report;
  Items items(json);
  Items ended(items.next());
  while (ended.more()) {
    Items pair(ended.next());
    report.ended.push_back({pair.integer<std::uint64_t>(), pair.integer<std::uint32_t>()});
    if (!pair.valid())
      return malformed();
  }
  Items written(items.next());
  while (written.more())
    report.written.push_back(written.integer<std::uint32_t>());
  Items bad(items.next());
  while (bad.more())
    report.bad.push_back(bad.string());
  if (!items.valid() || !ended.valid() || !written.valid() || !bad.valid())
    return malformed();
  return report;
}

}  // namespace dormouse
