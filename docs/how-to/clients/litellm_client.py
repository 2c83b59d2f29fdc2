"""LiteLLM and a server on this machine: an answer and a stream."""

import litellm

server = {"api_base": "http://127.0.0.1:8000/v1", "api_key": "none"}
model = "openai/MODEL"  # "openai/" says which protocol; then the name that `mkport serve` prints

answer = litellm.completion(
    model=model,
    messages=[{"role": "user", "content": "Name a bird that cannot fly."}],
    max_tokens=30,
    **server,
)
print("answer:", answer.choices[0].message.content)

stream = litellm.completion(
    model=model,
    messages=[{"role": "user", "content": "Count to five."}],
    max_tokens=30,
    stream=True,
    **server,
)
print("stream:", "".join(chunk.choices[0].delta.content or "" for chunk in stream))
