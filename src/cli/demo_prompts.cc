#include "cli/demo_prompts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>

#include "base/check.h"

namespace dormouse::cli {
namespace {

// Each prompt begins with another of these, so that no two share their first block.
constexpr std::string_view kParagraphs[] = {
    "The dormouse is a small animal with large dark eyes and a furry tail. It climbs well and is "
    "seldom seen on the ground, since everything that it eats grows in hedges and in the crowns of "
    "trees. From April to October it is awake at night, and it does not travel far from its nest.",
    "When the nights grow cold the dormouse has doubled its weight. It weaves a ball of bark and "
    "grass at the foot of a hazel, curls up in it, and lets its body cool until it is hardly "
    "warmer "
    "than the soil around it. Its heart then beats a few times in a minute instead of three "
    "hundred.",
    "A sleeping dormouse can be held in the hand without waking. It may even snore. To warm up "
    "again "
    "it shivers for half an hour and burns the fat that it has saved, which is why waking too "
    "often "
    "in a mild winter is more dangerous to it than a long frost.",
    "Memory in a computer is like a row of numbered boxes. A program does not see the boxes "
    "themselves; it sees addresses, and a table says which box stands behind which address. The "
    "table can be changed while the program runs, and the program does not notice.",
    "Suppose that a library lends out its reading room at night. In the evening every book goes "
    "back "
    "to the store, each to the shelf that its label names. In the morning the same books stand on "
    "the same desks again. A reader who left a slip of paper on a desk finds it where it was.",
    "Question: a train leaves the town of Ashford at ten minutes past eight and needs one hour and "
    "forty minutes to the coast. The next one leaves an hour later and is ten minutes faster. At "
    "what time does each of them arrive, and how long does the first passenger wait for the "
    "second?",
    "Here is a recipe for bread. Mix five hundred grams of flour with three hundred and fifty "
    "grams "
    "of water, ten grams of salt and a little yeast. Let the dough rest overnight in a cool place, "
    "fold it twice, shape it, and bake it for forty minutes in a very hot oven.",
    "def count_words(text):\n    counts = {}\n    for word in text.lower().split():\n        "
    "counts[word] = counts.get(word, 0) + 1\n    return counts\n\n# The function above returns a "
    "dictionary. The one below sorts its entries by how often they occur.\n",
    "Hazel, honeysuckle, bramble, oak and yew: a good hedge gives flowers in spring, insects in "
    "summer and nuts in autumn. Where hedges are cut every year they bear no nuts, and where they "
    "have gaps a dormouse cannot cross. Planting a gap of ten metres may join two woods.",
    "In the year 1865 a mathematician published a story in which a dormouse falls asleep at a tea "
    "party, tells of three sisters who lived at the bottom of a well, and is at last put into the "
    "teapot by the two other guests. The girl who listened found the party rather tiresome.",
};

std::string text_from(std::size_t first, std::size_t paragraphs) {
  std::string text;
  for (std::size_t i = 0; i < paragraphs; ++i)
    text += std::string(text.empty() ? "" : "\n\n") +
            std::string(kParagraphs[(first + i) % std::size(kParagraphs)]);
  return text;
}

std::size_t length_of(std::size_t index, std::size_t count) {
  if (count == 1)
    return kShortestPrompt;
  const double growth = static_cast<double>(kLongestPrompt) / static_cast<double>(kShortestPrompt);
  const double position = static_cast<double>(index) / static_cast<double>(count - 1);
  return static_cast<std::size_t>(
      std::lround(static_cast<double>(kShortestPrompt) * std::pow(growth, position)));
}

}  // namespace

Result<std::vector<std::vector<TokenId>>> make_prompts(const text::Tokenizer& tokenizer,
                                                       const text::ChatTemplate& chat_template,
                                                       std::size_t count) {
  constexpr std::size_t kTwiceTheCorpus = 2 * std::size(kParagraphs);
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<TokenId> tokens = tokenizer.encode(text_from(i, kTwiceTheCorpus));
    tokens.resize(std::min(tokens.size(), length_of(i, count)));
    if (i % 5 == 4) {
      const std::string content = tokenizer.decode(tokens, true);
      DM_TRY_ASSIGN(const auto rendered,
                    chat_template.render({{.role = "user", .content = content}}, true));
      tokens = tokenizer.encode(rendered);
    }
    prompts.push_back(std::move(tokens));
  }
  return prompts;
}

}  // namespace dormouse::cli
