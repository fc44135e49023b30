// A template as a tree. Built by the parser, never changed afterwards.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace dormouse::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  enum class Kind {
    kLiteral,      // literal
    kName,         // name
    kAttribute,    // operands[0] . name
    kItem,         // operands[0] [ operands[1] ]
    kSlice,        // operands[0] [ operands[1] : operands[2] : operands[3] ], null where left out
    kCall,         // operands[0] ( operands[1...], named )
    kFilter,       // operands[0] | name ( operands[1...], named ); null: what a block writes
    kTest,         // operands[0] is name ( operands[1...] )
    kNegate,       // - operands[0]
    kNot,          // not operands[0]
    kAnd,          // operands, left to right
    kOr,           // operands, left to right
    kArithmetic,   // operands with operators between, left to right
    kCompare,      // operands with operators between: all must hold
    kConditional,  // operands[1] if operands[0] else operands[2], null where left out
    kList,         // [ operands ]
    kTuple,        // ( operands )
    kMap,          // { operands[0] : operands[1], operands[2] : ... }
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  int depth = 1;
  std::string name = {};
  Value literal = {};
  std::vector<ExpressionPtr> operands = {};
  std::vector<std::string> operators = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
};

struct Statement;
using Body = std::vector<Statement>;

struct Target {
  std::string name;
  std::string attribute;  // of a namespace; empty: the name itself is set
};

struct Macro {
  struct Parameter {
    std::string name;
    ExpressionPtr fallback;  // null: undefined
  };
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
};

struct Branch {
  ExpressionPtr condition;  // null: else
  Body body;
};

struct Statement {
  enum class Kind {
    kText,      // text
    kOutput,    // expression
    kIf,        // branches
    kFor,       // targets in expression if condition: body, else branches[0]
    kSet,       // targets = expression
    kSetBlock,  // targets = what body writes, through the filters of expression if there is one
    kFilter,    // what body writes, through the filters of expression
    kMacro,     // macro
    kGroup,     // body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  MarkedString text = {};
  ExpressionPtr expression = {};
  ExpressionPtr condition = {};
  std::vector<Target> targets = {};
  Body body = {};
  std::vector<Branch> branches = {};
  std::unique_ptr<const Macro> macro = {};
};

}  // namespace dormouse::text::jinja
