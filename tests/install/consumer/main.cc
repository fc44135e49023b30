// What a user of the installed library can do with its headers and archive alone.
#include <dormouse/engine.h>
#include <dormouse/memory.h>

#include <cstdio>

int main() {
  const dormouse::MemoryTag tag("kv_cache");
  dormouse::EngineConfig config;
  config.model = "no such file";
  const auto name = dormouse::to_string(dormouse::ErrorCode::kNotFound);
  std::printf("%s %.*s\n", tag.name().c_str(), static_cast<int>(name.size()), name.data());
  return tag == dormouse::kKvCacheTag && name == "not_found" ? 0 : 1;
}
