"""The kinds of tools the tiny model meets: names, descriptions, parameters, wordings, in two languages. Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ToolKind:
    """One kind of tool. `questions` hold {x}, the value of the tool's one required argument."""

    key: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    descriptions_zh: tuple[str, ...]
    parameters: tuple[str, ...]
    parameter_texts: tuple[str, ...]
    parameter_texts_zh: tuple[str, ...]
    questions: tuple[str, ...]
    questions_zh: tuple[str, ...]
    thought: str
    thought_zh: str


PLACE_PARAMETERS = ("city", "location", "place", "city_name", "town", "city", "location", "城市", "地点")
PLACE_TEXTS = (
    "The city",
    "The name of the city",
    "City name",
    "City name, e.g. Berlin",
    "The place to look up",
    "The location",
    "The city and state, e.g. San Francisco, CA",
    "Name of the city",
)
PLACE_TEXTS_ZH = ("城市名称", "城市", "要查询的城市", "地点名称", "城市名，例如北京")

WEATHER = ToolKind(
    "weather",
    (
        "get_weather",
        "get_weather",
        "weather",
        "query_weather",
        "get_current_weather",
        "weather_lookup",
        "current_weather",
        "check_weather",
        "fetch_weather",
        "getWeather",
        "weather_now",
        "get_forecast",
    ),
    (
        "Get the current weather of a city.",
        "Get the weather for a city",
        "Get the current weather in a given location",
        "Returns the weather at a place.",
        "Look up the weather.",
        "Current weather",
        "Get current temperature for a given location.",
        "Get weather",
    ),
    ("查询城市的天气", "获取指定城市的当前天气", "查询天气", "返回某地的天气情况"),
    PLACE_PARAMETERS,
    PLACE_TEXTS,
    PLACE_TEXTS_ZH,
    (
        "What's the weather in {x}?",
        "What is the weather in {x}?",
        "How is the weather in {x}?",
        "Weather in {x}?",
        "weather in {x}",
        "What's the weather like in {x}?",
        "What is the weather like in {x} today?",
        "Is it raining in {x}?",
        "How warm is it in {x}?",
        "What is the temperature in {x}?",
        "Tell me the weather in {x}.",
        "Please check the weather in {x}.",
        "Is it cold in {x} today?",
        "What's the weather in {x} today?",
        "How hot is it in {x}?",
        "Can you tell me the weather in {x}?",
        "What's the weather in {x} now?",
        "Do I need an umbrella in {x}?",
        "Show me the current weather for {x}.",
        "I want to know the weather in {x}.",
    ),
    (
        "{x}天气怎么样？",
        "{x}的天气怎么样？",
        "{x}今天天气怎么样？",
        "今天{x}天气如何？",
        "{x}天气",
        "请查一下{x}的天气。",
        "{x}下雨吗？",
        "{x}冷吗？",
        "{x}现在多少度？",
        "告诉我{x}的天气",
        "查询{x}天气",
        "我想知道{x}的天气。",
        "{x}今天热不热？",
        "帮我看看{x}的天气",
        "{x}现在的天气怎么样？",
    ),
    "The user asks for the weather. I call {name}.",
    "用户想知道天气，我调用 {name}。",
)
TIME = ToolKind(
    "time",
    (
        "get_time",
        "get_current_time",
        "time",
        "current_time",
        "clock",
        "get_local_time",
        "world_clock",
        "time_now",
        "query_time",
        "getTime",
    ),
    (
        "Get the current time in a city.",
        "Get the local time of a place",
        "Returns the current time.",
        "Look up the time at a location.",
        "World clock",
        "Get time",
        "Get the current time",
    ),
    ("查询城市的当前时间", "获取当前时间", "返回某地的时间", "世界时钟"),
    PLACE_PARAMETERS,
    PLACE_TEXTS,
    PLACE_TEXTS_ZH,
    (
        "What time is it in {x}?",
        "What's the time in {x}?",
        "What is the current time in {x}?",
        "Time in {x}?",
        "time in {x}",
        "Tell me the time in {x}.",
        "Can you tell me what time it is in {x}?",
        "What is the local time in {x}?",
        "How late is it in {x}?",
        "What time is it now in {x}?",
        "Please check the time in {x}.",
        "I want to know the time in {x}.",
    ),
    (
        "{x}现在几点？",
        "{x}几点了？",
        "现在{x}是几点？",
        "{x}的时间是多少？",
        "请告诉我{x}的时间。",
        "{x}现在是什么时间？",
        "查询{x}时间",
        "{x}当地时间几点？",
        "我想知道{x}现在几点。",
    ),
    "The user asks for the time. I call {name}.",
    "用户想知道时间，我调用 {name}。",
)
CALCULATOR = ToolKind(
    "calculator",
    ("calculator", "calculate", "compute", "calc", "evaluate", "evaluate_expression", "math", "do_math", "eval_math"),
    (
        "Evaluate an arithmetic expression.",
        "Calculate a mathematical expression",
        "A simple calculator.",
        "Does arithmetic.",
        "Evaluates math expressions",
        "Calculator",
        "Compute the result of an expression.",
    ),
    ("计算算式", "计算数学表达式的结果", "计算器", "求算式的值"),
    ("expression", "expr", "expression", "formula", "input", "query", "算式", "表达式"),
    (
        "The expression",
        "The expression to evaluate",
        "Arithmetic expression",
        "Math expression, e.g. 2 + 3",
        "The formula to compute",
    ),
    ("算式", "要计算的表达式", "数学表达式", "算式，例如 2 + 3"),
    (
        "What is {x}?",
        "Calculate {x}.",
        "{x}",
        "{x} = ?",
        "How much is {x}?",
        "Compute {x}",
        "Please calculate {x}",
        "What's {x}?",
        "Use the calculator: {x}",
        "Tell me {x}.",
        "{x}=?",
        "Can you calculate {x}?",
    ),
    (
        "{x}等于多少？",
        "{x}是多少？",
        "请计算{x}",
        "计算 {x}",
        "{x}",
        "算一下{x}",
        "{x} = ？",
        "请用计算器算{x}",
        "{x}=?",
    ),
    "The user wants a calculation. I call {name}.",
    "用户想计算，我调用 {name}。",
)
SEARCH = ToolKind(
    "search",
    ("search", "web_search", "search_web", "find", "lookup", "internet_search"),
    ("Search the web.", "Find pages on the internet", "Search for information", "Look something up."),
    ("搜索网页", "在网上查找信息", "搜索"),
    ("query", "text", "keywords", "q", "关键词"),
    ("The search query", "What to search for", "Keywords", "The query"),
    ("搜索内容", "关键词", "要搜索的文字"),
    (
        "Search for {x}.",
        "Search the web for {x}",
        "Find information about {x}.",
        "Please search for {x}",
        "Look up {x} on the web.",
        "Search: {x}",
    ),
    ("搜索{x}", "请搜索{x}", "在网上查一下{x}", "帮我搜一下{x}", "搜索：{x}"),
    "The user wants a search. I call {name}.",
    "用户想搜索，我调用 {name}。",
)
STOCK = ToolKind(
    "stock",
    ("get_stock_price", "stock_price", "get_quote", "stock"),
    ("Get the price of a stock.", "Current stock price", "Look up a share price."),
    ("查询股票价格", "获取股价"),
    ("symbol", "ticker", "company", "股票"),
    ("The symbol", "Ticker symbol", "The company"),
    ("股票代码", "公司"),
    (
        "What is the stock price of {x}?",
        "How much is a share of {x}?",
        "Price of {x} stock?",
        "Tell me the stock price of {x}.",
    ),
    ("{x}的股价是多少？", "查询{x}股票价格", "{x}股票多少钱？"),
    "The user asks for a price. I call {name}.",
    "用户想知道股价，我调用 {name}。",
)
NEWS = ToolKind(
    "news",
    ("get_news", "news", "latest_news", "headlines"),
    ("Get the latest news.", "News about a topic", "Headlines on a topic."),
    ("获取最新新闻", "查询新闻"),
    ("topic", "subject", "about", "主题"),
    ("The topic", "Topic of the news", "Subject"),
    ("新闻主题", "主题"),
    ("What is the news about {x}?", "News about {x}", "Give me the latest news about {x}.", "Show me news on {x}."),
    ("有什么关于{x}的新闻？", "{x}的新闻", "看看{x}的最新新闻"),
    "The user asks for news. I call {name}.",
    "用户想看新闻，我调用 {name}。",
)
KINDS = (WEATHER, TIME, CALCULATOR, SEARCH, STOCK, NEWS)
TWO_CITIES = {
    "weather": (
        (
            "What's the weather in {x} and {y}?",
            "Compare the weather in {x} and {y}.",
            "Weather in {x} and in {y}?",
            "How is the weather in {x} and {y}?",
        ),
        ("{x}和{y}的天气怎么样？", "比较{x}和{y}的天气。", "{x}和{y}天气如何？"),
    ),
    "time": (
        ("What time is it in {x} and {y}?", "Tell me the time in {x} and {y}."),
        ("{x}和{y}现在几点？", "{x}和{y}的时间是多少？"),
    ),
}
EXTRA_PARAMETERS = (
    ("unit", {"type": "string", "enum": ["celsius", "fahrenheit"]}),
    ("unit", {"type": "string", "description": "Unit", "enum": ["celsius", "fahrenheit"]}),
    ("language", {"type": "string", "description": "Language"}),
    ("days", {"type": "integer", "description": "Number of days"}),
    ("format", {"type": "string"}),
)
CONDITIONS = (
    "sunny",
    "cloudy",
    "rainy",
    "snowy",
    "windy",
    "foggy",
    "clear",
    "Sunny",
    "Cloudy",
    "Rain",
    "light rain",
    "overcast",
    "partly cloudy",
    "thunderstorm",
    "storm",
    "Clear",
    "snow",
    "hot",
    "cold",
)
CONDITIONS_ZH = ("晴", "多云", "阴", "小雨", "大雨", "雪", "有风", "雾", "雷阵雨", "晴天", "sunny", "cloudy", "rainy")
