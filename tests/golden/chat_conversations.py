"""100 chat requests as rows have them: roles, turns, tool calls and their results, reasoning, unicode, empty and missing content, parts, settings. Pure, seeded."""
import json
import random

WORDS = ["hello", "Grüße", "数字を足して", "😀👩‍👩‍👧‍👦", "a < b & c > \"d\"", "line one\nline two", "  spaced  ", "\ttab", "<|im_end|>", "</s>", "{{ not a template }}", "{% raw %}", "\\n", "'quoted'", "e\u0301\u0323",
         "Ж" * 5, "0.1 + 0.2", "مرحبا", "\u2028", "<think>hm</think>", "`code`", "<tool_call>", "end."]


def text(rng):
    return rng.choice([" ", "\n", ", "]).join(rng.choice(WORDS) for _ in range(rng.randrange(1, 6)))


def value(rng, depth=0):
    kind = rng.randrange(8 if depth < 2 else 6)
    if kind == 0:
        return rng.choice([0, -1, 7, 10**18, 2.5, 1e100, -0.0, 1e-7])
    if kind == 1:
        return rng.choice([True, False, None])
    if kind < 6:
        return text(rng)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(["zeta", "alpha", "ключ", "a b"]): value(rng, depth + 1) for _ in range(rng.randrange(3))}


def tool(rng, name):
    properties = {p: {"type": rng.choice(["string", "integer", "number", "boolean", ["string", "null"]]), "description": text(rng)} for p in rng.sample(["city", "zahl", "unit", "数"], rng.randrange(1, 4))}
    if rng.random() < 0.3:
        properties["nested"] = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}, "enum": [1, 2.5]}}, "required": ["x"]}
    out = {"type": "function", "function": {"name": name, "description": text(rng), "parameters": {"type": "object", "properties": properties, "required": list(properties)[:1]}}}
    if rng.random() < 0.2:
        out["function"]["strict"] = True
    return out


def request(rng):
    messages, names = [], ["get_weather", "add", "search_📚"]
    tools = [tool(rng, n) for n in rng.sample(names, rng.randrange(1, 4))] if rng.random() < 0.5 else None
    if rng.random() < 0.5:
        messages.append({"role": rng.choice(["system", "system", "system", "developer"]), "content": rng.choice([text(rng), "", text(rng)])})
    calls = 0
    for _ in range(rng.randrange(1, 4)):
        content = text(rng)
        if rng.random() < 0.15:
            content = [{"type": "text", "text": text(rng)} for _ in range(rng.randrange(1, 3))]
        messages.append({"role": "user", "content": content})
        if rng.random() < 0.65:
            answer = {"role": "assistant", "content": rng.choice([text(rng), text(rng), "", "<think>\n" + text(rng) + "\n</think>\n\n" + text(rng)])}
            if rng.random() < 0.2:
                answer["reasoning_content"] = text(rng)
            if tools and rng.random() < 0.6:
                answer["content"] = rng.choice([None, "", text(rng)])
                answer["tool_calls"] = []
                for _ in range(rng.randrange(1, 3)):
                    arguments = {a: value(rng) for a in rng.sample(["city", "zahl", "数"], rng.randrange(3))}
                    if rng.random() < 0.3:
                        arguments = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
                    answer["tool_calls"].append({"id": f"call{calls:05d}", "type": "function", "function": {"name": rng.choice(names), "arguments": arguments}})
                    calls += 1
                messages.append(answer)
                for call in answer["tool_calls"]:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": rng.choice([text(rng), json.dumps({"result": 3}), ""])})
                if rng.random() < 0.5:
                    messages.append({"role": "assistant", "content": text(rng)})
            else:
                messages.append(answer)
    out = {"messages": messages}
    if tools:
        out["tools"] = tools
    if rng.random() < 0.3:
        out["add_generation_prompt"] = rng.random() < 0.5
    kwargs = {}
    if rng.random() < 0.5:
        kwargs["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.2:
        kwargs["reasoning_effort"] = rng.choice(["low", "high"])
    if rng.random() < 0.1:
        kwargs["documents"] = [{"title": text(rng), "text": text(rng)}]
    if kwargs:
        out["chat_template_kwargs"] = kwargs
    return out


def requests(count=100):
    rng = random.Random(4711)
    return [request(rng) for _ in range(count)]
