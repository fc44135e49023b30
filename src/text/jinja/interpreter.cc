#include "text/jinja/interpreter.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>

#include "base/check.h"
#include "text/jinja/budget.h"
#include "text/jinja/functions.h"
#include "text/jinja/lexer.h"
#include "text/jinja/operations.h"

namespace dormouse::text::jinja {
namespace {

constexpr std::array<std::string_view, 5> kBuiltins{"range", "namespace", "dict", "raise_exception",
                                                    "strftime_now"};

class Interpreter {
 public:
  Interpreter(const Map& variables, std::time_t now) : now_(now) {
    scopes_.emplace_back();
    for (const std::string_view name : kBuiltins)
      scopes_[0][std::string(name)] = Value::builtin(name);
    for (const auto& [name, value] : variables.entries())
      scopes_[0][name.text()] = value;
  }

  Result<MarkedString> run(const Body& body) {
    DM_TRY(execute(body));
    return std::move(out_);
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using Scope = std::unordered_map<std::string, Value>;

  // Counts how deep the native stack is in use; undone by leaving the block.
  class Frame {
   public:
    explicit Frame(Interpreter& interpreter) : depth_(interpreter.depth_) { ++depth_; }
    ~Frame() { --depth_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    int& depth_;
  };
  static constexpr int kMaxFrames = 1024;

  Status check_limits() {
    if (depth_ > kMaxFrames)
      return fail(ErrorCode::kResourceExhausted, "the template calls itself too deeply");
    return budget_.spend();
  }

  static tl::unexpected<Error> at_line(int line, Error error) {
    return error.param.empty() ? fail_at(line, error.message, error.code)
                               : tl::unexpected(std::move(error));
  }

  Result<Flow> execute(const Body& body) {
    for (const Statement& statement : body) {
      auto flow = execute(statement);
      if (!flow)
        return at_line(statement.line, std::move(flow).error());
      if (*flow != Flow::kNext)
        return *flow;
    }
    return Flow::kNext;
  }

  Result<Flow> execute(const Statement& statement) {
    const Frame frame(*this);
    DM_TRY(check_limits());
    switch (statement.kind) {
      case Statement::Kind::kText:
        DM_TRY(write(statement.text));
        break;
      case Statement::Kind::kOutput: {
        DM_TRY_ASSIGN(const Value value, evaluate(*statement.expression));
        DM_TRY_ASSIGN(const MarkedString text, to_text(value, budget_));
        DM_TRY(write(text));
        break;
      }
      case Statement::Kind::kIf:
        return execute_if(statement);
      case Statement::Kind::kFor:
        return execute_for(statement);
      case Statement::Kind::kSet: {
        DM_TRY_ASSIGN(Value value, evaluate(*statement.expression));
        DM_TRY(assign(statement.targets, std::move(value)));
        break;
      }
      case Statement::Kind::kSetBlock:
      case Statement::Kind::kFilter:
        DM_TRY(execute_captured(statement));
        break;
      case Statement::Kind::kMacro:
        scopes_.back()[statement.macro->name] = Value::macro(*statement.macro);
        break;
      case Statement::Kind::kGroup:
        return execute(statement.body);
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  Status write(const MarkedString& text) {
    DM_TRY(budget_.spend(text.size() / 64));
    out_.append(text);
    return out_.size() > Budget::kMaxStringBytes ? budget_.spend_string(out_.size()) : Status();
  }

  Result<Flow> execute_if(const Statement& statement) {
    for (const Branch& branch : statement.branches) {
      bool chosen = true;
      if (branch.condition) {
        DM_TRY_ASSIGN(const Value condition, evaluate(*branch.condition));
        chosen = condition.is_true();
      }
      if (chosen)
        return execute(branch.body);
    }
    return Flow::kNext;
  }

  Result<Flow> execute_for(const Statement& statement) {
    DM_TRY_ASSIGN(const Value iterable, evaluate(*statement.expression));
    DM_TRY_ASSIGN(std::vector<Value> items, iterate(iterable, budget_));
    if (statement.condition) {
      DM_TRY(keep_where(statement, items));
    }
    if (items.empty() && !statement.branches.empty())
      return execute(statement.branches[0].body);
    for (std::size_t i = 0; i < items.size(); ++i) {
      DM_TRY(budget_.spend(10));
      scopes_.emplace_back();
      scopes_.back()["loop"] = loop_state(items, i);
      DM_TRY(assign(statement.targets, items[i]));
      DM_TRY_ASSIGN(const Flow flow, execute(statement.body));
      scopes_.pop_back();
      if (flow == Flow::kBreak)
        break;
    }
    return Flow::kNext;
  }

  Status keep_where(const Statement& statement, std::vector<Value>& items) {
    std::vector<Value> kept;
    for (Value& item : items) {
      scopes_.emplace_back();
      DM_TRY(assign(statement.targets, item));
      DM_TRY_ASSIGN(const Value holds, evaluate(*statement.condition));
      scopes_.pop_back();
      if (holds.is_true())
        kept.push_back(std::move(item));
    }
    items = std::move(kept);
    return {};
  }

  static Value loop_state(const std::vector<Value>& items, std::size_t at) {
    Map loop;
    const auto index = static_cast<std::int64_t>(at);
    const auto length = static_cast<std::int64_t>(items.size());
    const auto set = [&](const char* name, Value value) {
      loop.set(MarkedString::trusted(name), std::move(value));
    };
    set("index0", Value::integer(index));
    set("index", Value::integer(index + 1));
    set("revindex0", Value::integer(length - index - 1));
    set("revindex", Value::integer(length - index));
    set("first", Value::boolean(index == 0));
    set("last", Value::boolean(index + 1 == length));
    set("length", Value::integer(length));
    if (at > 0)
      set("previtem", items[at - 1]);
    if (at + 1 < items.size())
      set("nextitem", items[at + 1]);
    return Value::map(std::move(loop));
  }

  Status assign(const std::vector<Target>& targets, Value value) {
    if (targets.size() == 1)
      return assign(targets[0], std::move(value));
    DM_TRY_ASSIGN(const std::vector<Value> parts, iterate(value, budget_));
    if (parts.size() != targets.size())
      return wrong(fmt::format("{} values for {} names", parts.size(), targets.size()));
    for (std::size_t i = 0; i < parts.size(); ++i)
      DM_TRY(assign(targets[i], parts[i]));
    return {};
  }

  Status assign(const Target& target, Value value) {
    if (target.attribute.empty()) {
      scopes_.back()[target.name] = std::move(value);
      return {};
    }
    const Value object = look_up(target.name);
    if (!object.is_namespace())
      return wrong(fmt::format("'{}' is not a namespace", target.name));
    object.as_namespace().attributes.set(MarkedString::trusted(target.attribute), std::move(value));
    return {};
  }

  // {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}
  Status execute_captured(const Statement& statement) {
    DM_TRY_ASSIGN(Value text, capture(statement.body));
    if (statement.expression) {
      captured_ = text;
      DM_TRY_ASSIGN(text, evaluate(*statement.expression));
    }
    if (statement.kind == Statement::Kind::kSetBlock)
      return assign(statement.targets, std::move(text));
    DM_TRY_ASSIGN(const MarkedString filtered, to_text(text, budget_));
    return write(filtered);
  }

  Result<Value> capture(const Body& body) {
    MarkedString outer = std::exchange(out_, {});
    scopes_.emplace_back();
    DM_TRY(execute(body));
    scopes_.pop_back();
    return Value::string(std::exchange(out_, std::move(outer)));
  }

  Value look_up(const std::string& name) const {
    for (std::size_t i = scopes_.size(); i-- > 0;) {
      if (i > 0 && i < visible_from_)
        continue;
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end())
        return found->second;
    }
    return Value::undefined(name);
  }

  Result<Value> evaluate(const Expression& expression) {
    const Frame frame(*this);
    DM_TRY(check_limits());
    auto value = evaluate_kind(expression);
    if (!value)
      return at_line(expression.line, std::move(value).error());
    if (value->depth() > Value::kMaxDepth)
      return fail_at(expression.line, "a value is nested too deeply",
                     ErrorCode::kResourceExhausted);
    return value;
  }

  Result<Value> evaluate_kind(const Expression& expression) {
    using Kind = Expression::Kind;
    switch (expression.kind) {
      case Kind::kLiteral:
        return expression.literal;
      case Kind::kName:
        return look_up(expression.name);
      case Kind::kCall:
        return evaluate_call(expression);
      case Kind::kFilter:
      case Kind::kTest:
        return evaluate_named(expression);
      case Kind::kNegate:
      case Kind::kNot:
      case Kind::kAttribute:
        return evaluate_unary(expression);
      case Kind::kItem:
      case Kind::kSlice:
        return evaluate_subscript(expression);
      case Kind::kAnd:
      case Kind::kOr:
        return evaluate_logic(expression);
      case Kind::kArithmetic:
        return evaluate_arithmetic(expression);
      case Kind::kCompare:
        return evaluate_compare(expression);
      case Kind::kConditional:
        return evaluate_conditional(expression);
      case Kind::kList:
      case Kind::kTuple:
      case Kind::kMap:
        return evaluate_collection(expression);
    }
    return wrong("an expression of no kind");
  }

  Result<Value> evaluate_unary(const Expression& expression) {
    DM_TRY_ASSIGN(const Value operand, evaluate(*expression.operands[0]));
    if (expression.kind == Expression::Kind::kNot)
      return Value::boolean(!operand.is_true());
    if (expression.kind == Expression::Kind::kNegate)
      return negate(operand);
    return attribute(operand, expression.name);
  }

  Result<Value> evaluate_subscript(const Expression& expression) {
    std::array<Value, 4> parts;
    for (std::size_t i = 0; i < expression.operands.size(); ++i) {
      parts[i] = Value::none();
      if (expression.operands[i]) {
        DM_TRY_ASSIGN(parts[i], evaluate(*expression.operands[i]));
      }
    }
    return expression.kind == Expression::Kind::kItem
               ? item(parts[0], parts[1], budget_)
               : slice(parts[0], parts[1], parts[2], parts[3], budget_);
  }

  // The value is that of the operand that decided, as in Python.
  Result<Value> evaluate_logic(const Expression& expression) {
    const bool decisive = expression.kind == Expression::Kind::kOr;
    Value value;
    for (const ExpressionPtr& operand : expression.operands) {
      DM_TRY_ASSIGN(value, evaluate(*operand));
      if (value.is_true() == decisive)
        break;
    }
    return value;
  }

  Result<Value> evaluate_arithmetic(const Expression& expression) {
    DM_TRY_ASSIGN(Value value, evaluate(*expression.operands[0]));
    for (std::size_t i = 0; i < expression.operators.size(); ++i) {
      DM_TRY_ASSIGN(const Value right, evaluate(*expression.operands[i + 1]));
      DM_TRY_ASSIGN(value, arithmetic(expression.operators[i], value, right, budget_));
    }
    return value;
  }

  Result<Value> evaluate_compare(const Expression& expression) {
    DM_TRY_ASSIGN(Value left, evaluate(*expression.operands[0]));
    for (std::size_t i = 0; i < expression.operators.size(); ++i) {
      DM_TRY_ASSIGN(Value right, evaluate(*expression.operands[i + 1]));
      DM_TRY_ASSIGN(const bool holds, compare(expression.operators[i], left, right, budget_));
      if (!holds)
        return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  Result<Value> evaluate_conditional(const Expression& expression) {
    DM_TRY_ASSIGN(const Value condition, evaluate(*expression.operands[0]));
    const ExpressionPtr& chosen = expression.operands[condition.is_true() ? 1 : 2];
    return chosen ? evaluate(*chosen) : Value::undefined("the missing else");
  }

  Result<Value> evaluate_collection(const Expression& expression) {
    std::vector<Value> items;
    for (const ExpressionPtr& operand : expression.operands) {
      DM_TRY_ASSIGN(Value value, evaluate(*operand));
      items.push_back(std::move(value));
    }
    if (expression.kind != Expression::Kind::kMap)
      return Value::list(std::move(items), expression.kind == Expression::Kind::kTuple);
    Map map;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (!items[i].is_string())
        return fail(ErrorCode::kUnsupported, "the key of a mapping is not a string");
      map.set(items[i].as_string(), std::move(items[i + 1]));
    }
    return Value::map(std::move(map));
  }

  // The arguments are the operands after the first.
  Result<Arguments> evaluate_arguments(const Expression& expression) {
    Arguments arguments;
    for (std::size_t i = 1; i < expression.operands.size(); ++i) {
      DM_TRY_ASSIGN(Value value, evaluate(*expression.operands[i]));
      arguments.positional.push_back(std::move(value));
    }
    for (const auto& [name, operand] : expression.named) {
      DM_TRY_ASSIGN(Value value, evaluate(*operand));
      arguments.named.emplace_back(name, std::move(value));
    }
    return arguments;
  }

  Result<Value> evaluate_named(const Expression& expression) {
    Value input = captured_;
    if (expression.operands[0]) {
      DM_TRY_ASSIGN(input, evaluate(*expression.operands[0]));
    }
    DM_TRY_ASSIGN(const Arguments arguments, evaluate_arguments(expression));
    if (expression.kind == Expression::Kind::kFilter)
      return apply_filter(expression.name, input, arguments, budget_);
    return apply_test(expression.name, input, arguments, budget_).map(&Value::boolean);
  }

  Result<Value> evaluate_call(const Expression& expression) {
    const Expression& callee = *expression.operands[0];
    if (callee.kind == Expression::Kind::kAttribute) {
      DM_TRY_ASSIGN(const Value object, evaluate(*callee.operands[0]));
      DM_TRY_ASSIGN(const Arguments arguments, evaluate_arguments(expression));
      return call_method(object, callee.name, arguments, budget_);
    }
    DM_TRY_ASSIGN(const Value function, evaluate(callee));
    DM_TRY_ASSIGN(const Arguments arguments, evaluate_arguments(expression));
    if (function.is_macro())
      return call_macro(function.as_macro(), arguments);
    if (function.is_builtin())
      return call_builtin(function.as_builtin(), arguments);
    if (function.is_undefined())
      return wrong(fmt::format("'{}' is undefined", function.undefined_name()));
    return wrong(fmt::format("{} cannot be called", function.type_name()));
  }

  // A macro sees its arguments and what the template has set outside of all blocks.
  Result<Value> call_macro(const Macro& macro, const Arguments& arguments) {
    if (arguments.positional.size() > macro.parameters.size())
      return wrong(fmt::format("too many arguments for macro '{}'", macro.name));
    for (const auto& [name, value] : arguments.named) {
      const auto is_this = [&](const Macro::Parameter& p) { return p.name == name; };
      if (std::none_of(macro.parameters.begin(), macro.parameters.end(), is_this))
        return wrong(fmt::format("macro '{}' has no parameter '{}'", macro.name, name));
    }
    const std::size_t outer = std::exchange(visible_from_, scopes_.size());
    scopes_.emplace_back();
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const Macro::Parameter& parameter = macro.parameters[i];
      const Value* given = arguments.find(i, parameter.name);
      Value value = given != nullptr ? *given : Value::undefined(parameter.name);
      if (given == nullptr && parameter.fallback) {
        DM_TRY_ASSIGN(value, evaluate(*parameter.fallback));
      }
      scopes_.back()[parameter.name] = std::move(value);
    }
    DM_TRY_ASSIGN(Value text, capture(macro.body));
    scopes_.pop_back();
    visible_from_ = outer;
    return text;
  }

  Result<Value> call_builtin(std::string_view name, const Arguments& arguments) {
    if (name == "range")
      return range(arguments, budget_);
    if (name == "raise_exception") {
      const Value* message = arguments.find(0, "message");
      DM_TRY_ASSIGN(const MarkedString text, to_text(message ? *message : Value(), budget_));
      return wrong(text.text());
    }
    if (name == "strftime_now")
      return strftime_now(arguments, now_);
    Map map;
    if (!arguments.positional.empty()) {
      if (!arguments.positional[0].is_map())
        return wrong(fmt::format("{} needs names or a mapping", name));
      map = arguments.positional[0].as_map();
    }
    for (const auto& [key, value] : arguments.named)
      map.set(MarkedString::trusted(key), value);
    if (name == "dict")
      return Value::map(std::move(map));
    return Value::name_space(namespaces_.emplace_back(Namespace{std::move(map)}));
  }

  std::time_t now_;
  Budget budget_;
  int depth_ = 0;
  std::vector<Scope> scopes_;
  std::size_t visible_from_ = 0;  // scopes between the first and this one belong to callers
  std::deque<Namespace> namespaces_;
  Value captured_;  // what the block whose filters are running has written
  MarkedString out_;
};

}  // namespace

Result<MarkedString> render(const Body& body, const Map& variables, std::time_t now) {
  if (variables.depth() > Value::kMaxDepth)
    return fail(ErrorCode::kInvalidArgument, "the variables are nested too deeply",
                "chat_template");
  return Interpreter(variables, now).run(body);
}

}  // namespace dormouse::text::jinja
