// sleeping_engine MODEL.gguf: an engine in this process answers, sleeps, wakes and answers the
// same.
#include <dormouse/engine.h>
#include <dormouse/metrics.h>

#include <cstdio>
#include <cstdlib>
#include <future>

namespace {

using namespace dormouse;

template <class T>
T need(Result<T> result) {
  if (result)
    return std::move(*result);
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}

// Waits for the last event of a request: its sink is called on the engine's thread.
std::vector<TokenId> generate(Engine& engine, const std::vector<TokenId>& prompt) {
  std::vector<TokenId> tokens;
  std::promise<void> ended;
  Request request{.prompt = prompt};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 32;
  need(engine.submit(std::move(request), [&](RequestOutput output) {
    for (const GeneratedToken& each : output.tokens)
      tokens.push_back(each.token);
    if (output.finished)
      ended.set_value();
  }));
  ended.get_future().wait();
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2)
    return std::fprintf(stderr, "usage: %s MODEL.gguf\n", argv[0]), 2;
  EngineConfig config;
  config.model = argv[1];
  const std::unique_ptr<Engine> engine = Engine::start(config);
  if (const Status loaded = engine->wait_until_loaded(); !loaded)
    return std::fprintf(stderr, "%s\n", loaded.error().message.c_str()), 1;

  const std::vector<ChatMessage> chat = {{"user", "What is a dormouse?"}};
  const std::vector<TokenId> prompt = need(engine->encode_chat(chat));
  const std::vector<TokenId> before = generate(*engine, prompt);
  std::printf("%s\n", need(engine->decode(before)).c_str());

  const TransitionReport slept = need(engine->sleep({.level = 1}));
  std::printf("asleep: %lld bytes given back\n",
              static_cast<long long>(slept.memory.measured_freed));
  const auto refused = engine->submit({.prompt = prompt}, [](RequestOutput) {});
  std::printf("a request now: %s\n", refused ? "accepted" : refused.error().message.c_str());

  need(engine->wake_up(std::nullopt));
  const bool same = generate(*engine, prompt) == before;
  std::printf("awake: %s answer, %llu tokens generated so far\n", same ? "the same" : "ANOTHER",
              static_cast<unsigned long long>(engine->counters().generation_tokens));
  return same && !refused && slept.memory.measured_freed > 0 ? 0 : 1;
}
