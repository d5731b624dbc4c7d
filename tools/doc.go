// Package tools defines the contract of a tool: the [Tool] interface, its
// [Definition] and its results. It also holds the registry of tools and the
// functions that make their text safe to show.
//
// tools/policy decides which calls run, tools/approval asks people, and
// tools/dispatch runs the calls. The concrete tools are in sub-packages too.
//
// The package is rank 1 and knows neither sandbox nor loop: a tool that needs a
// container declares an interface of the few methods it needs, and runner adapts a
// sandbox to it. tools/shell and tools/verify use sandbox's types for commands.
package tools
