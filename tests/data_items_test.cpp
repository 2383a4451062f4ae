#include <fmt/format.h>

#include <limits>
#include <stdexcept>
#include <system_error>

#include "files.h"
#include "widehead/data/items_file.h"
#include "widehead/errors.h"

namespace widehead::test {
namespace {

using namespace std::string_literals;

Interactions parse(std::string_view text, const ItemsOptions& options = {}) {
  auto lines = lines_of(text);
  auto result = read_items(lines, options);
  result.ratings.validate("ratings", result.users.size(), result.items.size());
  return result;
}

HeldOutInteractions parse_held_out(std::string_view text, const Interactions& training,
                                   const ItemsOptions& options = {}) {
  auto lines = lines_of(text);
  auto result = read_held_out_items(lines, training, options);
  result.ratings.validate("ratings", training.users.size(), training.items.size());
  return result;
}

/// "user: item item=rating …" for each user.
std::vector<std::string> describe(const SparseRows& ratings, const Interactions& names) {
  std::vector<std::string> result;
  for (Size u = 0; u < ratings.rows(); ++u) {
    std::string text(names.users[static_cast<Index>(u)]);
    text += ":";
    for (std::size_t e = 0; e < ratings.row_indices(u).size(); ++e) {
      text += " " + std::string(names.items.name(ratings.row_indices(u)[e]));
      if (ratings.row_values(u)[e] != 1) text += fmt::format("={}", ratings.row_values(u)[e]);
    }
    result.push_back(text);
  }
  return result;
}
std::vector<std::string> describe(const Interactions& result) { return describe(result.ratings, result); }

using Text = std::vector<std::string>;

// ── lists ───────────────────────────────────────────────────────────────────────────────────────

TEST(ItemsFileTest, ListsAreUsersWithTheirItems) {
  const auto result = parse("ann milk bread\n\nbob\nann tea milk\ncy\tbread  \r\n", {.layout = ItemsLayout::lists});
  EXPECT_EQ(describe(result), (Text{"ann: milk bread tea", "bob:", "cy: bread"}));
  EXPECT_EQ(result.items.size(), 3);
  EXPECT_EQ(result.repeated, 1);
  EXPECT_EQ(result.rated_low, 0);
}

TEST(ItemsFileTest, IntegersOfListsAreTheIndicesThemselves) {
  const auto result = parse("7 5 2\n8 0 5\n");
  EXPECT_EQ(describe(result), (Text{"7: 2 5", "8: 0 5"}));
  EXPECT_EQ(result.items.size(), 6);
  EXPECT_EQ(result.items.name(3), "3");
  EXPECT_EQ(result.items.find("5"), 5);
  const auto by_appearance = parse("7 5 2\n8 0 5\n", {.numeric = false});
  EXPECT_EQ(by_appearance.items.size(), 3);
  EXPECT_EQ(by_appearance.items.find("5"), 0);
}

TEST(ItemsFileTest, OneNameThatIsNoIntegerMakesAllOfThemNames) {
  for (const auto* odd : {"x", "-1", "-0", "05", "1.0", "2147483647", "99999999999"}) {
    const auto result = parse(fmt::format("7 5 2\n8 {} 5\n", odd));
    EXPECT_EQ(result.items.size(), 3) << odd;
    EXPECT_EQ(result.items.find(odd), 2) << odd;
  }
}

TEST(ItemsFileTest, AStrayLargeIntegerDoesNotCostMemory) {
  EXPECT_EQ(parse("7 1048575\n").items.size(), 1 << 20);
  expect_error<FileError>([] { parse("7 5 1048576\n"); },
                          "f: items go up to 1048576, but only 2 different ones occur: set numeric to false to number "
                          "them as they appear");
  expect_error<FileError>([] { parse("7 2147483646\n"); },
                          "f: items go up to 2147483646, but only 1 different ones occur: set numeric to false to "
                          "number them as they appear");
  EXPECT_EQ(parse("7 2147483646\n", {.numeric = false}).items.size(), 1);
}

// ── csv ─────────────────────────────────────────────────────────────────────────────────────────

TEST(ItemsFileTest, CsvTakesThreeSeparatorsAndManyHeaders) {
  const Text expected{"ann: old milk tea=2.5", "bob: tea=4"};
  for (const auto* header : {"", "userId,movieId,rating,timestamp\n", "who,what,stars\n", "\n"}) {
    for (const char separator : {',', ';', '\t'}) {
      auto text = header + "ann,old milk,1\nbob,tea,4\r\n\nann,  tea ,2.5"s;
      std::replace(text.begin(), text.end(), ',', separator);
      EXPECT_EQ(describe(parse(text)), expected) << text;
    }
  }
}

TEST(ItemsFileTest, CsvWithoutRatingsCountsOneEach) {
  EXPECT_EQ(describe(parse("ann,milk\nbob,tea\nann,tea\n")), (Text{"ann: milk tea", "bob: tea"}));
  for (const auto* header : {"user,item", "User_ID;Item_ID", "userid\tmovieId", "uid,iid"}) {
    auto text = header + "\na,b\n"s;
    std::replace(text.begin() + static_cast<Size>(std::string(header).size()), text.end(), ',',
                 text[text.find_first_of(",;\t")]);
    EXPECT_EQ(describe(parse(text)), Text{"a: b"}) << text;
  }
  EXPECT_EQ(parse("user,milk\n").users.size(), 1) << "one name of a header is not a header";
  EXPECT_EQ(parse("ann,item\n").users.size(), 1) << "one name of a header is not a header";
}

TEST(ItemsFileTest, WhetherThereIsAHeaderCanBeSaid) {
  EXPECT_EQ(describe(parse("user,item\n", {.header = ItemsHeader::absent})), Text{"user: item"});
  EXPECT_EQ(describe(parse("ann,milk\nbob,tea\n", {.header = ItemsHeader::present})), Text{"bob: tea"});
  expect_error<FileError>([] { parse("a,b,stars\n", {.header = ItemsHeader::absent}); },
                          "f:1: the rating is \"stars\", expected a finite number, 0 or more");
}

TEST(ItemsFileTest, FurtherColumnsAreIgnored) {
  EXPECT_EQ(describe(parse("1\t9\t3\t881250949\n1\t8\t2\tx\n")), (Text{"1: 9=3 8=2"})) << "and items of csv are names";
}

TEST(ItemsFileTest, APairThatOccursAgainCountsOnceWithItsLargestRating) {
  const auto result = parse("a,x,2\na,x,5\na,x,3\nb,x,1\n");
  EXPECT_EQ(describe(result), (Text{"a: x=5", "b: x"}));
  EXPECT_EQ(result.repeated, 2);
}

TEST(ItemsFileTest, PairsRatedLowAreLeftOutWithTheirNames) {
  const auto result = parse("a,x,3.5\nb,y,2\na,z,4\nc,x,3.4999\n", {.min_rating = 3.5F});
  EXPECT_EQ(describe(result), (Text{"a: x=3.5 z=4"}));
  EXPECT_EQ(result.items.size(), 2);
  EXPECT_EQ(result.rated_low, 2);
}

TEST(ItemsFileTest, TheLayoutCanBeSaid) {
  EXPECT_EQ(describe(parse("ann a,b c;d\n", {.layout = ItemsLayout::lists})), (Text{"ann: a,b c;d"}));
  expect_error<FileError>([] { parse("ann milk\n", {.layout = ItemsLayout::csv}); },
                          "f:1: found \"ann milk\", expected user,item or user,item,rating");
}

void expect_refused(std::string_view text, const std::string& message, const ItemsOptions& options = {}) {
  expect_error<FileError>([&] { parse(text, options); }, message);
}

TEST(ItemsFileTest, RefusesBadCsv) {
  expect_refused("a,b\n,c\n", "f:2: the user is missing, expected user,item or user,item,rating");
  expect_refused("a,b\nc\n", "f:2: the item is missing, expected user,item or user,item,rating");
  expect_refused("a,b\nc, \n", "f:2: the item is missing, expected user,item or user,item,rating");
  for (const auto* rating : {"", "x", "-1", "nan", "inf", "1e39", "4 5"}) {
    expect_refused(fmt::format("a,b,3\na,c,{}\n", rating),
                   fmt::format("f:2: the rating is \"{}\", expected a finite number, 0 or more", rating));
  }
  expect_refused("a,b,3\na,c\n", "f:2: the rating is \"\", expected a finite number, 0 or more");
  expect_refused("a,b\n\"c\",d\n",
                 "f:2: the user \"\"c\"\" begins with a quotation mark: quoted fields are not supported");
  expect_refused("a,b\nc,\"d\"\n",
                 "f:2: the item \"\"d\"\" begins with a quotation mark: quoted fields are not supported");
}

TEST(ItemsFileTest, RefusesFilesWithoutPairs) {
  expect_refused("", "f: the file has no pairs of a user and an item");
  expect_refused("\n \n", "f:2: the file has no pairs of a user and an item");
  expect_refused("ann\nbob\n", "f:2: the file has no pairs of a user and an item");
  expect_refused("user,item,rating\n", "f:1: the file has no pairs of a user and an item");
  expect_refused("a,b,3\n", "f:1: no pair is rated 4 or higher: lower min_rating", {.min_rating = 4});
}

TEST(ItemsFileTest, RefusesMinRatingWhereThereAreNoRatings) {
  expect_refused("ann milk\n", "f:1: lists have no ratings, but min_rating is 4", {.min_rating = 4});
  expect_refused("ann,milk\n", "f:1: there are no ratings, but min_rating is 4", {.min_rating = 4});
  for (const float bad : {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const auto message = fmt::format("items: min_rating = {}, but it must be finite and not negative", bad);
    expect_error<std::invalid_argument>([&] { parse("a,b,3\n", {.min_rating = bad}); }, message);
    const auto training = parse("a b\n");
    expect_error<std::invalid_argument>([&] { parse_held_out("a b\n", training, {.min_rating = bad}); }, message);
  }
}

// ── held out ────────────────────────────────────────────────────────────────────────────────────

TEST(ItemsFileTest, HeldOutPairsAreThoseOfKnownUsersAndItems) {
  const auto training = parse("ann milk bread\nbob\ncy tea\n");
  const auto held_out = parse_held_out("cy milk beer tea milk\ndan milk beer\nann tea\n", training);
  EXPECT_EQ(describe(held_out.ratings, training), (Text{"ann: tea", "bob:", "cy: milk tea"}));
  EXPECT_EQ(held_out.unknown_users, 2);
  EXPECT_EQ(held_out.unknown_items, 1);
  EXPECT_EQ(held_out.repeated, 1);
}

TEST(ItemsFileTest, HeldOutRatingsAreFilteredAlike) {
  const auto training = parse("a,x,3\nb,y,2\n");
  const auto held_out = parse_held_out("user,item,rating\nb,x,5\na,y,1\nc,x,5\na,z,5\n", training, {.min_rating = 2});
  EXPECT_EQ(describe(held_out.ratings, training), (Text{"a:", "b: x=5"}));
  EXPECT_EQ(held_out.rated_low, 1);
  EXPECT_EQ(held_out.unknown_users, 1);
  EXPECT_EQ(held_out.unknown_items, 1);
}

TEST(ItemsFileTest, HeldOutIntegersMeanWhatTheyMeanInTraining) {
  const auto training = parse("0 3 1\n1 2\n");
  const auto held_out = parse_held_out("1 0 3\n0 4\n", training);
  EXPECT_EQ(held_out.ratings.indices, (std::vector<Index>{0, 3}));
  EXPECT_EQ(held_out.unknown_items, 1);
}

TEST(ItemsFileTest, NothingHeldOutIsAnError) {
  const auto training = parse("ann milk\n");
  expect_error<FileError>([&] { parse_held_out("ann tea\nbob milk\n", training); },
                          "f:2: no pair of a user and an item that training has, and rated 0 or higher");
}

// ── on disk ─────────────────────────────────────────────────────────────────────────────────────

class ItemsOnDiskTest : public FolderTest {};

TEST_F(ItemsOnDiskTest, FilesAreReadByPath) {
  const auto training = read_items(write("train", "ann milk tea\n"));
  EXPECT_EQ(training.items.size(), 2);
  EXPECT_EQ(read_held_out_items(write("test", "ann tea\n"), training).ratings.nonzeros(), 1);
}

TEST_F(ItemsOnDiskTest, ItemsThatWereSavedAreLoaded) {
  const auto result = parse("a,old milk\na,é\nb,tea\n");
  result.items.save(path("items.txt"));
  EXPECT_EQ(read(path("items.txt")), "old milk\né\ntea\n");
  const auto items = ItemIndex::load(path("items.txt"));
  ASSERT_EQ(items.size(), 3);
  for (Index i = 0; i < 3; ++i) {
    EXPECT_EQ(items.name(i), result.items.name(i));
    EXPECT_EQ(items.find(result.items.name(i)), i);
  }
}

TEST(ItemIndexTest, LoadRefusesWhatAreNoNames) {
  const auto refused = [](std::string_view text, const std::string& message) {
    expect_error<FileError>(
        [&] {
          auto lines = lines_of(text);
          ItemIndex::load(lines);
        },
        message);
  };
  refused("", "f: the file is empty, expected names of items, one a line");
  refused("a\n\nb\n", "f:2: the line is empty, expected the name of an item");
  refused("a\nb\na\n", "f:3: the item \"a\" is there twice, first on line 1");
}

}  // namespace
}  // namespace widehead::test
