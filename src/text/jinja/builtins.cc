#include <array>
#include <cstdlib>

#include "base/check.h"
#include "text/jinja/functions.h"
#include "text/jinja/operations.h"

namespace dormouse::text::jinja {

Result<Value> range(const Arguments& arguments, Budget& budget) {
  std::array<std::int64_t, 3> given{0, 0, 1};
  const std::size_t count = arguments.positional.size();
  if (count < 1 || count > given.size())
    return wrong("range needs one to three integers");
  constexpr auto kLimit = static_cast<std::int64_t>(Budget::kMaxSteps);
  for (std::size_t i = 0; i < count; ++i) {
    const Value& argument = arguments.positional[i];
    if (!argument.is_number() || argument.is_real() || argument.as_integer() > kLimit ||
        argument.as_integer() < -kLimit)
      return wrong("range needs integers up to a million");
    given[count == 1 ? 1 : i] = argument.as_integer();
  }
  const auto [start, stop, step] = given;
  if (step == 0)
    return wrong("the step of a range is zero");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    DM_TRY(budget.spend());
    items.push_back(Value::integer(i));
  }
  return Value::list(std::move(items));
}

Result<Value> strftime_now(const Arguments& arguments, std::time_t now) {
  const Value* format = arguments.find(0, "format");
  if (format == nullptr || !format->is_string() || format->as_string().size() > 256)
    return wrong("strftime_now needs a format");
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 4096> buffer;
  const std::size_t size =
      std::strftime(buffer.data(), buffer.size(), format->as_string().text().c_str(), &local);
  return Value::trusted(std::string(buffer.data(), size));
}

}  // namespace dormouse::text::jinja
