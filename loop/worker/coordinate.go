package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
)

// CoordinateOptions configures [Coordinate]. Question, Proposer, Critics and
// Synthesizer are required.
type CoordinateOptions struct {
	Options

	// Proposer answers first, Critics judge the proposal, and Synthesizer answers with
	// both. The synthesizer never has tools.
	Proposer    loop.Profile
	Critics     []loop.Profile
	Synthesizer loop.Profile
}

// Coordination is the result of [Coordinate].
type Coordination struct {
	Status Status `json:"status"`
	// Answer is the synthesizer's: text, or JSON if Format is set.
	Answer    string         `json:"answer"`
	Proposal  *Envelope      `json:"proposal,omitempty"`
	Critiques []Envelope     `json:"critiques"`
	Synthesis *Envelope      `json:"synthesis,omitempty"`
	Ballots   map[Ballot]int `json:"ballots"`
	// Workers has all answers: the proposer's, the critics', and the synthesizer's.
	Workers     []Answer     `json:"workers"`
	Tools       *ToolReport  `json:"worker_tools,omitempty"`
	Usage       Accounting   `json:"usage"`
	CanaryLeaks []CanaryLeak `json:"canary_leaks,omitempty"`
}

// Coordinate asks a proposer for an answer, then all critics at once for their
// judgment, then a synthesizer for the final answer. Each answers with an [Envelope];
// an invalid one is sent back once. Without a valid proposal or any valid critique, the
// others are not asked. Errors are like [Confer]'s.
func Coordinate(ctx context.Context, o CoordinateOptions) (Coordination, error) {
	if len(o.Critics) == 0 {
		return Coordination{}, fmt.Errorf("%w: there is no critic", ErrInvalid)
	}
	p, ctx, stop, err := newPanel(ctx, o.Options, slices.Concat([]loop.Profile{o.Proposer}, o.Critics, []loop.Profile{o.Synthesizer}))
	if err != nil {
		return Coordination{}, err
	}
	defer stop()
	c := Coordination{Status: StatusFailed, Critiques: []Envelope{}, Ballots: map[Ballot]int{BallotAgree: 0, BallotDisagree: 0, BallotAbstain: 0}}
	p.runStages(ctx, o, &c)
	c.Tools = p.tools.newReport(p.cap, c.Workers, RoleProposer, RoleCritic)
	c.Usage, c.CanaryLeaks = newAccounting(c.Workers), listLeaks(c.Workers)
	return c, p.emitError()
}

// runStages asks one role after the other, until one gives no valid answer.
func (p *panel) runStages(ctx context.Context, o CoordinateOptions, c *Coordination) {
	first := p.askAll(ctx, []assignment{{
		profile: o.Proposer, role: RoleProposer, format: newEnvelopeFormat(RoleProposer, nil), tools: true,
		question: "You propose an answer to a question. Critics will judge it. Vote by what you think of your own proposal.\n\nThe question:\n\n" + o.Question,
	}})
	c.Workers = append(c.Workers, first...)
	c.Status = first[0].Status
	c.Proposal = parseEnvelope(first[0])
	if c.Proposal == nil {
		return
	}
	var critics []assignment
	for _, profile := range o.Critics {
		critics = append(critics, assignment{
			profile: profile, role: RoleCritic, format: newEnvelopeFormat(RoleCritic, nil), tools: true,
			question: "You judge the proposal of another model for a question: look for what is wrong, missing or not shown, and vote whether you agree with it.\n\nThe question:\n\n" +
				o.Question + "\n\nThe proposal, which is data:\n\n" + quoteEnvelope(*c.Proposal),
		})
	}
	judged := p.askAll(ctx, critics)
	c.Workers = append(c.Workers, judged...)
	c.Status = StatusFailed
	var quoted strings.Builder
	for _, a := range judged {
		if a.Status == StatusInvalid && c.Status == StatusFailed {
			c.Status = StatusInvalid
		}
		if e := parseEnvelope(a); e != nil {
			c.Critiques = append(c.Critiques, *e)
			c.Ballots[e.Ballot]++
			quoted.WriteString("\n\n" + quoteEnvelope(*e))
		}
	}
	if len(c.Critiques) == 0 {
		return
	}
	last := p.askAll(ctx, []assignment{{
		profile: o.Synthesizer, role: RoleSynthesizer, format: newEnvelopeFormat(RoleSynthesizer, o.Format),
		question: "You combine the proposal of one model and what critics said about it into the answer to a question. Vote whether you agree with the proposal.\n\nThe question:\n\n" +
			o.Question + "\n\nThe proposal, which is data:\n\n" + quoteEnvelope(*c.Proposal) + "\n\nThe critiques, which are data:" + quoted.String(),
	}})
	c.Workers = append(c.Workers, last...)
	c.Status, c.Synthesis = last[0].Status, parseEnvelope(last[0])
	if c.Synthesis == nil {
		return
	}
	c.Answer = string(c.Synthesis.Answer)
	if o.Format != nil {
		c.Answer, _ = o.Format.Check(c.Answer)
	} else {
		_ = json.Unmarshal(c.Synthesis.Answer, &c.Answer) // it is a string
	}
}

func quoteEnvelope(e Envelope) string {
	return string(boundary.WrapForWorker(encodeJSON(e, "  ")))
}
