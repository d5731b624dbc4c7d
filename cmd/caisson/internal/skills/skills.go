// Package skills shows the skills that a session can load.
package skills

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/skill"
)

// Found is the output of caisson skills list --json.
type Found struct {
	Skills  []skill.Info    `json:"skills"`
	Ignored []skill.Ignored `json:"ignored"`
}

// describeTools returns the tools that are left while the skill is loaded.
func describeTools(s skill.Info) string {
	if s.AllowedTools == nil {
		return "all"
	}
	names := make([]string, 0, len(s.Tools))
	for _, name := range s.Tools {
		names = append(names, string(name))
	}
	return cmp.Or(strings.Join(names, " "), "none")
}

// Rows returns the table of the skills, safe for display.
func (found Found) Rows() [][]string {
	rows := [][]string{{"SKILL", "TRUST", "TOOLS", "PATH", "WHAT IT DOES"}}
	for _, s := range found.Skills {
		path, _ := tools.Display(s.Path)
		about, _, _ := strings.Cut(strings.Join(strings.Fields(s.Description), " "), ". ")
		about, _ = tools.Display(about)
		rows = append(rows, []string{s.Name, string(s.Trust), describeTools(s), path, about})
	}
	return rows
}

// Write shows one skill, safe for display.
func Write(w io.Writer, s skill.Info) error {
	lines := []string{
		fmt.Sprintf("%s: %s, %d bytes, %s", s.Name, s.Path, s.Bytes, s.Trust), "sha256 " + s.SHA256, "tools while it is loaded: " + describeTools(s),
	}
	if len(s.Unknown) > 0 {
		lines = append(lines, "dropped, no tools here: "+strings.Join(s.Unknown, " "))
	}
	if len(s.Patterns) > 0 {
		lines = append(lines, "patterns that are not enforced: "+strings.Join(s.Patterns, " "))
	}
	for _, warning := range s.Warnings {
		lines = append(lines, "warning: "+warning)
	}
	text, _ := tools.DisplayLines(strings.Join(lines, "\n") + "\n\n" + s.Description + "\n\n" + s.Body + "\n")
	_, err := io.WriteString(w, text)
	return err
}
