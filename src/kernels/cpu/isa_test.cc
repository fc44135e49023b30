#include "kernels/cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/cpu/kernels.h"

namespace dormouse::kernels {
namespace {

TEST(Isa, ScalarRunsEverywhereAndTheFastestIsTheDefault) {
  const std::vector<Isa> supported = supported_isas();
  ASSERT_FALSE(supported.empty());
  EXPECT_EQ(supported.front(), Isa::kScalar);
  EXPECT_EQ(choose_isa("").value(), supported.back());
}

TEST(Isa, EveryNameIsChosenOrRefusedForWhatTheProcessorLacks) {
  const std::vector<Isa> supported = supported_isas();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni}) {
    const Result<Isa> chosen = choose_isa(to_string(isa));
    if (std::find(supported.begin(), supported.end(), isa) != supported.end()) {
      EXPECT_EQ(chosen.value(), isa);
    } else {
      ASSERT_FALSE(chosen);
      EXPECT_EQ(chosen.error().code, ErrorCode::kUnsupported);
      EXPECT_NE(chosen.error().message.find(to_string(isa)), std::string::npos);
    }
  }
}

TEST(Isa, RefusesAnUnknownName) {
  const Result<Isa> chosen = choose_isa("sse9");
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(chosen.error().message.find("sse9"), std::string::npos);
}

TEST(Isa, TheEnvironmentForcesAChoice) {
  ASSERT_EQ(setenv(kIsaVariable, "scalar", 1), 0);
  EXPECT_EQ(choose_isa_from_environment().value(), Isa::kScalar);
  ASSERT_EQ(setenv(kIsaVariable, "nonsense", 1), 0);
  EXPECT_FALSE(choose_isa_from_environment());
  ASSERT_EQ(unsetenv(kIsaVariable), 0);
  EXPECT_EQ(choose_isa_from_environment().value(), supported_isas().back());
}

TEST(Isa, EachHasItsOwnTableOfKernels) {
  for (const Isa isa : supported_isas())
    EXPECT_EQ(cpu_kernels(isa).isa, isa);
}

}  // namespace
}  // namespace dormouse::kernels
