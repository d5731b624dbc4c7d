package skill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools"
)

// Trust says whose text a skill counts as.
type Trust string

// The levels of trust.
const (
	// TrustOperator is a skill from the operator's directories.
	TrustOperator Trust = "operator"
	// TrustTrusted is a workspace skill whose SKILL.md is as the user trusted it.
	// It counts as the operator's.
	TrustTrusted Trust = "trusted"
	// TrustUntrusted is any other skill.
	TrustUntrusted Trust = "untrusted"
)

// Skill is one skill, as its SKILL.md was when the session began.
type Skill struct {
	Document

	Trust Trust
	// Path is the SKILL.md relative to the workspace, or for display if it is the
	// operator's. It may contain control characters.
	Path   string
	Bytes  int64
	SHA256 string
	// dir is the absolute path of the directory, and check refuses files that
	// others could have written. Both are only set for the operator's skills.
	dir   string
	check func(path string) error
}

// Loaded describes a skill that a session loaded. It is the metadata of the call's
// record.
type Loaded struct {
	Name   string `json:"skill"`
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Trust  Trust  `json:"trust"`
	// AllowedTools is nil if the skill does not declare them.
	AllowedTools *[]string `json:"allowed_tools,omitempty"`
}

func newLoaded(s Skill) Loaded {
	l := Loaded{Name: s.Name, Path: s.Path, SHA256: s.SHA256, Trust: s.Trust}
	if s.Declares {
		l.AllowedTools = new(slices.Clone(s.AllowedTools))
	}
	return l
}

// Set holds a session's skills, and which of them are loaded. Methods are safe for
// concurrent use. The zero value has no skills.
type Set struct {
	skills  []Skill
	ignored []Ignored

	mu     sync.Mutex
	loaded []Loaded
}

// Skills returns the skills, the operator's first. The caller must not change them.
func (s *Set) Skills() []Skill {
	if s == nil {
		return nil
	}
	return s.skills
}

// Ignored returns what was found but can't be used. The caller must not change it.
func (s *Set) Ignored() []Ignored {
	if s == nil {
		return nil
	}
	return s.ignored
}

func (s *Set) findSkill(name string) (Skill, bool) {
	i := slices.IndexFunc(s.Skills(), func(one Skill) bool { return one.Name == name })
	if i < 0 {
		return Skill{}, false
	}
	return s.skills[i], true
}

// Clone returns a set with the same skills and the same ones loaded.
func (s *Set) Clone() *Set {
	if s == nil {
		return &Set{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Set{skills: s.skills, ignored: s.ignored, loaded: slices.Clone(s.loaded)}
}

// Restore adds skills that an earlier process of the session loaded. Their
// allowed-tools restrict the session even if they are gone.
func (s *Set) Restore(loaded []Loaded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = append(s.loaded, loaded...)
}

// addLoaded marks a skill as loaded. It returns false if the loaded skills don't
// allow another.
func (s *Set) addLoaded(one Skill) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.loaded, one.matches) {
		return true
	}
	if allowed, declared := s.allowedLocked(); declared && !allowsAny(allowed, ToolName) {
		return false
	}
	s.loaded = append(s.loaded, newLoaded(one))
	return true
}

func (s *Set) isLoaded(one Skill) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.loaded, one.matches)
}

// matches reports whether a loaded skill is this one. In a resumed session, one of
// the same name may have another text or trust.
func (s Skill) matches(l Loaded) bool {
	return l.Name == s.Name && l.SHA256 == s.SHA256 && l.Trust == s.Trust
}

// allowedLocked returns everything that the loaded skills declare, and whether any
// declares something. The caller holds mu.
func (s *Set) allowedLocked() (allowed []string, declared bool) {
	for _, l := range s.loaded {
		if l.AllowedTools != nil {
			allowed, declared = append(allowed, *l.AllowedTools...), true
		}
	}
	return allowed, declared
}

// Allows reports whether the loaded skills leave a tool to the session
// (docs/internal/specification.md, Tool runtime): all tools if none declares
// allowed-tools, otherwise those that any of them names. read_file includes
// load_skill, which reads the skills' files.
func (s *Set) Allows(name tools.Name) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	allowed, declared := s.allowedLocked()
	return !declared || allowsAny(allowed, name) || name == ToolName && allowsAny(allowed, tools.NameReadFile)
}

// Refusal returns why the skills refuse a tool, or "" if they allow it.
func (s *Set) Refusal(name tools.Name) (reason, message string) {
	if s.Allows(name) {
		return "", ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]bool{}
	for _, l := range s.loaded {
		if l.AllowedTools != nil {
			names[l.Name] = true
		}
	}
	wire, err := name.LLM()
	if err != nil {
		wire = tools.LLMName(name)
	}
	return reasonSkill, fmt.Sprintf("Tool %q is not among the allowed-tools of the skills that this session has loaded: %s.", wire, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
}

const reasonSkill = "skill"

// MaxListBytes bounds the list of skills that a session begins with.
const MaxListBytes = 24_000

// List returns one line per skill with its name and description, safe for display:
// the operator's skills or the others.
func (s *Set) List(operators bool) string {
	var b strings.Builder
	for _, one := range s.Skills() {
		if (one.Trust != TrustUntrusted) == operators {
			b.WriteString(one.listLine())
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (s Skill) listLine() string {
	about, _ := tools.Display(strings.Join(strings.Fields(s.Description), " "))
	return "- " + s.Name + ": " + about + "\n"
}

// Info describes a skill to users. Its texts are as in the SKILL.md, not safe for a
// terminal.
type Info struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Path        string `json:"path" doc:"of the SKILL.md: relative to the workspace, or for display where it is the operator's"`
	Trust       Trust  `json:"trust" enum:"operator,trusted,untrusted" doc:"whose text it is"`
	SHA256      string `json:"sha256" doc:"hex SHA-256 of the SKILL.md"`
	Bytes       int64  `json:"bytes" doc:"size of the SKILL.md"`
	Loaded      bool   `json:"loaded,omitempty" doc:"the session has loaded it"`
	// AllowedTools is nil if the skill declares none.
	AllowedTools *[]string    `json:"allowed_tools,omitempty" doc:"allowed-tools as the skill declares them; absent where it declares none"`
	Tools        []tools.Name `json:"tools,omitempty" nullable:"false" doc:"the session's tools among them"`
	Unknown      []string     `json:"unknown,omitempty" nullable:"false" doc:"names among them that are no tools, and are dropped"`
	Patterns     []string     `json:"patterns,omitempty" nullable:"false" doc:"names among them with a pattern: the whole tool is left"`
	Warnings     []string     `json:"warnings,omitempty" nullable:"false" doc:"problems with which it can be used"`
	Body         string       `json:"body,omitempty" doc:"the text, in the answer for one skill"`
}

// Infos describes all skills to users of a session with these tools.
func (s *Set) Infos(known []tools.Name) []Info {
	list := []Info{}
	for _, one := range s.Skills() {
		i := Info{
			Name: one.Name, Description: one.Description, Path: one.Path, Trust: one.Trust, SHA256: one.SHA256, Bytes: one.Bytes,
			Loaded: s.isLoaded(one), Warnings: one.Warnings, Body: one.Body,
		}
		if one.Declares {
			i.AllowedTools = &one.AllowedTools
			i.Tools, i.Unknown, i.Patterns = Resolve(one.AllowedTools, known)
		}
		list = append(list, i)
	}
	return list
}
