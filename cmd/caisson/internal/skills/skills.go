// Package skills shows the skills that a session can load.
package skills

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/skill"
)

// Skill is a skill as the commands show it.
type Skill struct {
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Path        string      `json:"path"`
	Trust       skill.Trust `json:"trust"`
	SHA256      string      `json:"sha256"`
	Bytes       int64       `json:"bytes"`
	// AllowedTools is nil if the skill declares none; Tools are ours among them, Unknown
	// the names that are dropped, and Patterns those of which the whole tool is left.
	AllowedTools *[]string    `json:"allowed_tools,omitempty"`
	Tools        []tools.Name `json:"tools,omitempty"`
	Unknown      []string     `json:"unknown,omitempty"`
	Patterns     []string     `json:"patterns,omitempty"`
	Warnings     []string     `json:"warnings,omitempty"`
	Body         string       `json:"body"`
}

// Found is the output of caisson skills list --json.
type Found struct {
	Skills  []Skill          `json:"skills"`
	Ignored []record.Ignored `json:"ignored"`
}

// New returns a skill as it is shown, where known are the tools of the session.
func New(s skill.Skill, known []tools.Name) Skill {
	l := Skill{Name: s.Name, Description: s.Description, Path: s.Path, Trust: s.Trust, SHA256: s.SHA256, Bytes: s.Bytes, Warnings: s.Warnings, Body: s.Body}
	if s.Declares {
		l.AllowedTools = &s.AllowedTools
		l.Tools, l.Unknown, l.Patterns = skill.Resolve(s.AllowedTools, known)
	}
	return l
}

// describeTools returns the tools that are left while the skill is loaded.
func (s Skill) describeTools() string {
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
		rows = append(rows, []string{s.Name, string(s.Trust), s.describeTools(), path, about})
	}
	return rows
}

// Write shows one skill, safe for display.
func (s Skill) Write(w io.Writer) error {
	lines := []string{
		fmt.Sprintf("%s: %s, %d bytes, %s", s.Name, s.Path, s.Bytes, s.Trust), "sha256 " + s.SHA256, "tools while it is loaded: " + s.describeTools(),
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
