"""LangChain and a server on this machine: an answer, a stream, a tool call."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    base_url="http://127.0.0.1:8000/v1",
    api_key="none",
    model="MODEL",  # the name that `mkport serve` prints
    max_tokens=120,
)

print("answer:", chat.invoke("Name a bird that cannot fly.").content)

print("stream:", "".join(chunk.content for chunk in chat.stream("Count to five.")))


@tool
def weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"It rains in {city}."


asking = chat.bind_tools([weather], tool_choice="weather")
print("call:", asking.invoke("What is the weather in Oslo?").tool_calls[0]["name"])
