package dispatch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// Bounds of the answer to an unknown name: with thousands of tools of servers, it would
// fill the model's context.
const (
	maxNamedTools = 40
	maxNearTools  = 3
	leastNearness = 0.6
)

// unknownTool is the failure of a call of a tool that is not there: it names those that a
// name is likely to mean, and the tools that are offered, our own first.
func unknownTool(name tools.Name, offered []tools.Definition) *tools.Error {
	var known []string
	for _, servers := range []bool{false, true} {
		for _, def := range offered {
			if wire, err := def.Name.LLM(); err == nil && (def.Name.Server() != "") == servers {
				known = append(known, string(wire))
			}
		}
	}
	rest := ""
	if more := len(known) - maxNamedTools; more > 0 {
		known, rest = known[:maxNamedTools], fmt.Sprintf(" and %d more", more)
	}
	if slices.ContainsFunc(offered, func(def tools.Definition) bool { return def.Name == tools.NameSearchTools }) {
		rest += fmt.Sprintf(". %s finds and loads tools of servers", tools.NameSearchTools)
	}
	shown, _ := tools.Display(string(name))
	message := fmt.Sprintf("There is no tool %q.%s The tools are: %s%s.", shown, hintAtTools(name, offered), strings.Join(known, ", "), rest)
	return &tools.Error{Class: tools.ErrorNotFound, Reason: "unknown_tool", Message: message, Visible: true}
}

// equivalentTools returns those of the offered tools that an unknown name is likely
// to mean: the same one in another spelling, or what other programs call so.
func equivalentTools(name tools.Name, offered []tools.Definition) []tools.Name {
	var found []tools.Name
	for _, def := range offered {
		if tools.IsSpelling(string(name), def.Name) {
			found = append(found, def.Name)
		}
	}
	return found[:min(len(found), maxNearTools)]
}

// nearTools returns the few of the offered tools whose names are most like an unknown one.
func nearTools(name tools.Name, offered []tools.Definition) []tools.Name {
	var names []tools.Name
	for _, def := range offered {
		names = append(names, def.Name)
	}
	return tools.NearestNames(string(name), names, leastNearness, maxNearTools)
}

// hintAtTools names the tools to use for an unknown name, "" for none.
func hintAtTools(name tools.Name, offered []tools.Definition) string {
	if quoted := quoteNames(equivalentTools(name, offered)); quoted != "" {
		return " Use " + quoted + " instead."
	}
	if quoted := quoteNames(nearTools(name, offered)); quoted != "" {
		return " Did you mean " + quoted + "?"
	}
	return ""
}

func quoteNames(names []tools.Name) string {
	var quoted []string
	for _, name := range names {
		if wire, err := name.LLM(); err == nil {
			quoted = append(quoted, fmt.Sprintf("%q", wire))
		}
	}
	return strings.Join(quoted, ", ")
}
