package skill

import "github.com/caisson-run/caisson/tools"

// Info describes a skill to users. Its texts are as the SKILL.md has them, and not safe for
// a terminal.
type Info struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Path        string `json:"path" doc:"of the SKILL.md: relative to the workspace, or for display where it is the operator's"`
	Trust       Trust  `json:"trust" enum:"operator,trusted,untrusted" doc:"whose text it is"`
	SHA256      string `json:"sha256" doc:"hex SHA-256 of the SKILL.md"`
	Bytes       int64  `json:"bytes" doc:"size of the SKILL.md"`
	// Loaded reports whether the session has loaded it.
	Loaded bool `json:"loaded,omitempty" doc:"the session has loaded it"`
	// AllowedTools is nil if the skill declares none.
	AllowedTools *[]string    `json:"allowed_tools,omitempty" doc:"allowed-tools as the skill declares them; absent where it declares none"`
	Tools        []tools.Name `json:"tools,omitempty" nullable:"false" doc:"the session's tools among them"`
	Unknown      []string     `json:"unknown,omitempty" nullable:"false" doc:"names among them that are no tools, and are dropped"`
	Patterns     []string     `json:"patterns,omitempty" nullable:"false" doc:"names among them with a pattern: the whole tool is left"`
	Warnings     []string     `json:"warnings,omitempty" nullable:"false" doc:"problems with which it can be used"`
	Body         string       `json:"body,omitempty" doc:"the text, in the answer for one skill"`
}

// NewInfo returns the description of a skill in a session whose tools are known.
func NewInfo(s Skill, known []tools.Name) Info {
	i := Info{Name: s.Name, Description: s.Description, Path: s.Path, Trust: s.Trust, SHA256: s.SHA256, Bytes: s.Bytes, Warnings: s.Warnings, Body: s.Body}
	if s.Declares {
		i.AllowedTools = &s.AllowedTools
		i.Tools, i.Unknown, i.Patterns = Resolve(s.AllowedTools, known)
	}
	return i
}

// Infos returns the descriptions of the skills of a set.
func (s *Set) Infos(known []tools.Name) []Info {
	list := []Info{}
	for _, one := range s.Skills() {
		i := NewInfo(one, known)
		i.Loaded = s.isLoaded(one)
		list = append(list, i)
	}
	return list
}
