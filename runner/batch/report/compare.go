package report

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/batch"
)

// errNoAgent is the error for an agent that a batch doesn't have.
var errNoAgent = errors.New("the batch has no such agent")

// choice is what the form for choosing two agents shows.
type choice struct {
	Names []string
	A, B  string
}

// comparePage compares two agents of a batch.
type comparePage struct {
	head
	Choice     choice
	Agents     []agentRow  // the two
	Comparison *comparison // nil until two agents are chosen
}

// newComparePage compares two agents by their names, which may be as pages show them.
// Without names, it is the form only.
func newComparePage(o ViewOptions, s batch.Spec, results []batch.Result, a, b string) (*comparePage, error) {
	p := &comparePage{head: o.newHead("Comparison in "+o.Title, ""), Choice: choice{Names: s.Agents}}
	find := func(name string) (string, error) {
		i := slices.IndexFunc(s.Agents, func(known string) bool { return name == known || name == showLine(known) })
		if i < 0 && name != "" {
			return "", fmt.Errorf("%w: %q. Choose one of these: %s", errNoAgent, name, strings.Join(s.Agents, ", "))
		}
		if i < 0 {
			return "", nil
		}
		return s.Agents[i], nil
	}
	var err error
	if p.Choice.A, err = find(a); err == nil {
		p.Choice.B, err = find(b)
	}
	if a, b = p.Choice.A, p.Choice.B; err != nil || a == "" || b == "" || a == b {
		return p, err
	}
	var own []batch.Result
	for _, r := range results {
		if r.Agent == a || r.Agent == b {
			own = append(own, r)
		}
	}
	slices.SortStableFunc(own, func(x, y batch.Result) int { return cmp.Compare(x.Attempt, y.Attempt) })
	two := s
	two.Agents = []string{a, b}
	for i, summary := range batch.Summarize(two, own).Agents {
		p.Agents = append(p.Agents, newAgentRow(i, summary))
	}
	c := compareTwo(a, b, s, own, newIndex(own, 0), maxTasks)
	c.Open = true
	p.Comparison = &c
	return p, nil
}
