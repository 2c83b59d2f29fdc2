"""The `openai` package and a server on this machine: an answer, a stream, a tool call, JSON."""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
model = client.models.list().data[0].id

answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Name a bird that cannot fly."}],
    max_tokens=30,
)
print("answer:", answer.choices[0].message.content)

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Count to five."}],
    max_tokens=30,
    stream=True,
)
print("stream:", "".join(chunk.choices[0].delta.content or "" for chunk in stream))

weather = {
    "name": "weather",
    "description": "Tells the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
called = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
    tools=[{"type": "function", "function": weather}],
    tool_choice="required",  # held to by a grammar, so a model of any size does it
    max_tokens=120,
)
print("call:", called.choices[0].message.tool_calls[0].function.arguments)

schema = {
    "type": "object",
    "properties": {"bird": {"type": "string", "maxLength": 20}, "flies": {"type": "boolean"}},
    "required": ["bird", "flies"],
    "additionalProperties": False,
}
formed = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Describe a penguin."}],
    response_format={"type": "json_schema", "json_schema": {"name": "bird", "schema": schema}},
    max_tokens=120,
)
print("json:", formed.choices[0].message.content)
