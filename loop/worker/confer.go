package worker

import (
	"context"

	"github.com/caisson-run/caisson/loop"
)

// ConferOptions configures [Confer]. Question and Profiles are required.
type ConferOptions struct {
	Options

	// Profiles are the models, each of which is asked once.
	Profiles []loop.Profile
}

// Conference is the response of [Confer].
type Conference struct {
	// Answers are those of the profiles, in their order.
	Answers []Answer `json:"answers"`
	// Tools is nil if no tools were asked for.
	Tools *ToolReport `json:"worker_tools,omitempty"`
	Usage Accounting  `json:"usage"`
	// CanaryLeaks are the answers that repeated a token which marks untrusted text. The
	// token is replaced in them.
	CanaryLeaks []CanaryLeak `json:"canary_leaks,omitempty"`
}

// Confer asks several models the same question, at the same time. No model sees the
// answer of another. A model that fails does not end the others. The error is non-nil
// for invalid options, and then wraps [ErrInvalid] or [loop.ErrNoModel], and for an error
// of Emit.
func Confer(ctx context.Context, o ConferOptions) (Conference, error) {
	p, ctx, stop, err := newPanel(ctx, o.Options, o.Profiles)
	if err != nil {
		return Conference{}, err
	}
	defer stop()
	var all []assignment
	for _, profile := range o.Profiles {
		all = append(all, assignment{profile: profile, question: o.Question, format: o.Format, tools: true})
	}
	answers := p.askAll(ctx, all)
	return Conference{Answers: answers, Tools: p.tools.newReport(p.cap, answers), Usage: newAccounting(answers), CanaryLeaks: listLeaks(answers)}, p.emitError()
}
