// Package tools is the contract of tools: the interface that a tool implements,
// its definition with name, schema and side-effect class, and its results. It also
// holds the registry of tools and what makes their text safe to show.
//
// tools/policy decides which calls run, tools/approval asks people, and
// tools/dispatch runs the calls. The concrete tools are in sub-packages too.
//
// It is rank 1 and knows neither sandbox nor loop: a tool that needs a container
// declares the one to three methods that it needs, and runner adapts a sandbox to
// them. tools/shell and tools/verify use the types of sandbox for commands.
package tools
