"""The engine from a notebook: one prompt, several, choices, a chat, a stream, a schema."""

import json

from mkport.engine import Engine
from mkport.engine.request import Grammar

engine = Engine(max_batch=4, max_model_len=1024)  # the demo model; or Engine("path/to/model")

one = engine.generate("The capital of France is", max_tokens=8, temperature=0.0)
print(one.text, one.reason)

several = engine.generate(["One, two,", "Red, green,"], max_tokens=8, temperature=0.0)
print([output.text for output in several])

choices = engine.generate("Once upon a time", max_tokens=8, n=2, seed=7)
print([output.text for output in choices])

messages = [{"role": "user", "content": "What is the capital of France?"}]
print(engine.chat(messages, max_tokens=16, temperature=0.0).text)

for piece in engine.stream("The sky is", max_tokens=8, temperature=0.0):
    print(piece, end="", flush=True)
print()

schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
schema["additionalProperties"] = False
grammar = Grammar("json_schema", json.dumps(schema))
answer = engine.generate("Her age as JSON: ", max_tokens=40, temperature=0.0, grammar=grammar)
print(json.loads(answer.text))

print(engine.stats())
engine.close()
