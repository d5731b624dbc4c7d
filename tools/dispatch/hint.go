package dispatch

import (
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// equivalentTools returns those of the offered tools that an unknown name is likely
// to mean: the same one in another spelling, or what other programs call so.
func equivalentTools(name tools.Name, offered []tools.Definition) []tools.Name {
	var found []tools.Name
	for _, def := range offered {
		if tools.IsSpelling(string(name), def.Name) {
			found = append(found, def.Name)
		}
	}
	return found
}

// hintAtTools names the tools to use for an unknown name, "" for none.
func hintAtTools(name tools.Name, offered []tools.Definition) string {
	var quoted []string
	for _, own := range equivalentTools(name, offered) {
		if wire, err := own.LLM(); err == nil {
			quoted = append(quoted, fmt.Sprintf("%q", wire))
		}
	}
	if len(quoted) == 0 {
		return ""
	}
	return " Use " + strings.Join(quoted, ", ") + " instead."
}
