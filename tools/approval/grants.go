package approval

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools"
)

// Grant is one stored answer.
//
//	{"tool":"shell","workspace":"/home/me/project","phrase":"git status","decision":"allow","created":"2026-11-20T10:00:00Z"}
type Grant struct {
	// Tool is canonical. Files may also have the wire form of the name.
	Tool tools.Name `json:"tool"`
	// Workspace is the absolute host path that the answer is for.
	Workspace string `json:"workspace"`
	// Phrase is an execute tool's exact command as [policy.StaticPhrase] returns
	// it, "" for other classes.
	Phrase string `json:"phrase,omitempty"`
	// Definition is the [tools.Definition].Hash of a server's tool, "" for others.
	// An allow holds only for that definition, a deny for later ones too.
	Definition string `json:"definition,omitempty"`
	// Decision is DecisionAllow or DecisionDeny.
	Decision Decision `json:"decision"`
	// Created is when the answer was stored, in UTC.
	Created time.Time `json:"created"`
}

// SameKey reports whether two grants are about the same calls, regardless of the
// tool's definition.
func (g Grant) SameKey(o Grant) bool {
	return g.Tool.Same(o.Tool) && g.Workspace == o.Workspace && g.Phrase == o.Phrase
}

func (g Grant) isComplete() bool {
	return g.Tool != "" && g.Workspace != "" && (g.Decision == DecisionAllow || g.Decision == DecisionDeny)
}

// Grants is the file of lasting answers ($XDG_STATE_HOME/caisson/approvals.json).
// It must be outside every workspace. It is read anew for each call, so that
// changes take effect at once. Methods are safe for concurrent use by several
// processes. A corrupt file is moved aside and counts as empty: everything is asked
// again, and the error is a [CorruptError]. The zero value is not useful.
type Grants struct{ file stateFile[grantsFile] }

type grantsFile struct {
	Version int     `json:"version"`
	Grants  []Grant `json:"grants"`
}

// NewGrants returns the grants in a file. Neither the file nor its directory need
// exist.
func NewGrants(path string) *Grants {
	return &Grants{stateFile[grantsFile]{
		path: path, what: "approvals", now: time.Now, parse: parseGrants,
		entries: func(f grantsFile) []any { return anyOf(f.Grants) },
	}}
}

// As returns the same file, changed on behalf of a. Nil stays nil.
func (g *Grants) As(a Author) *Grants {
	if g == nil {
		return nil
	}
	other := *g
	other.file.author = a
	return &other
}

// AnsweredBy returns the same file, with client added to the author of changes.
func (g *Grants) AnsweredBy(client string) *Grants {
	if client == "" {
		return g
	}
	a := g.file.author
	a.By += ", answered at " + client
	return g.As(a)
}

func anyOf[E any](list []E) []any {
	all := make([]any, len(list))
	for i, e := range list {
		all[i] = e
	}
	return all
}

// Find returns the stored answer to a tool, workspace, phrase and definition, if
// there is one. A deny beats an allow. An error means that there is no answer.
func (g *Grants) Find(key Grant) (Decision, bool, error) {
	list, err := g.List()
	decision := Decision("")
	for _, grant := range list {
		switch {
		case !grant.SameKey(key):
		case grant.Decision == DecisionDeny:
			return DecisionDeny, true, err
		case grant.Definition == key.Definition:
			decision = grant.Decision
		}
	}
	return decision, decision != "", err
}

// IsOutdated reports whether an allow of the same calls is stored for another
// definition of the tool.
func (g *Grants) IsOutdated(key Grant) bool {
	list, _ := g.List() // Find returns the error
	return slices.ContainsFunc(list, func(grant Grant) bool {
		return grant.SameKey(key) && grant.Decision == DecisionAllow && grant.Definition != key.Definition
	})
}

// List returns all grants in the order in which they were stored.
func (g *Grants) List() ([]Grant, error) {
	file, err := g.file.load()
	return file.Grants, err
}

// Add stores an answer. It replaces an earlier one to the same calls.
func (g *Grants) Add(grant Grant) error {
	if !grant.isComplete() {
		return fmt.Errorf("store approval of %q: tool, workspace and a decision of allow or deny are needed", grant.Tool)
	}
	grant.Created = g.file.now().UTC().Truncate(time.Second)
	return g.changeGrants(func(list []Grant) []Grant {
		return append(slices.DeleteFunc(list, grant.SameKey), grant)
	})
}

// Revoke removes the grants that match and returns them.
func (g *Grants) Revoke(match func(Grant) bool) ([]Grant, error) {
	var removed []Grant
	err := g.changeGrants(func(list []Grant) []Grant {
		return slices.DeleteFunc(list, func(grant Grant) bool {
			gone := match(grant)
			if gone {
				removed = append(removed, grant)
			}
			return gone
		})
	})
	return removed, err
}

func (g *Grants) changeGrants(edit func([]Grant) []Grant) error {
	return g.file.change(func(file grantsFile) grantsFile {
		return grantsFile{Version: 1, Grants: edit(file.Grants)}
	})
}

func parseGrants(text []byte) (grantsFile, error) {
	var file grantsFile
	err := state.Decode(text, &file)
	switch {
	case err != nil:
		return file, err
	case file.Version != 1:
		return file, fmt.Errorf("version is %d, must be 1", file.Version)
	case slices.ContainsFunc(file.Grants, func(g Grant) bool { return !g.isComplete() }):
		return file, errors.New("an entry has no tool, workspace or decision")
	}
	return file, nil
}
