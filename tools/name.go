package tools

// Name is a canonical tool name: snake_case, or server/tool. History, records,
// approvals, logs and the command line speak it.
type Name string

// LLMName is a tool's name on a provider's wire: every "/" of the canonical
// name becomes "__". There is no implicit conversion between the two.
type LLMName string
