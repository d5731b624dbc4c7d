// Package panel renders the responses of workers for people, and returns the reasons
// for which there is no answer.
package panel

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// FormatConference returns the answers of a conference as Markdown. If a form was asked
// for, it returns a line of JSON for each valid one instead.
func FormatConference(c worker.Conference, form bool) string {
	var b strings.Builder
	for _, a := range c.Answers {
		switch {
		case form && a.Status == worker.StatusAnswered:
			line, _ := json.Marshal(struct { // the answer is valid JSON
				Profile string          `json:"profile"`
				Answer  json.RawMessage `json:"answer"`
			}{a.Profile, json.RawMessage(a.Answer)})
			b.Write(append(line, '\n'))
		case form:
		case a.Status == worker.StatusAnswered:
			fmt.Fprintf(&b, "## %s\n\n%s\n\n", a.Profile, strings.TrimSpace(a.Answer))
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// DescribeWorker returns one line, safe for display, about a worker that has ended.
func DescribeWorker(a worker.Answer) string {
	var parts []string
	if a.Role != "" {
		parts = append(parts, string(a.Role))
	}
	parts = append(parts, a.Profile+": "+string(a.Status))
	for _, c := range a.InnerToolCalls {
		parts = append(parts, c.Name+" "+string(c.Status))
	}
	parts = append(parts, fmt.Sprintf("%d tokens", a.Usage.Tokens()), record.CostUSD(a.Usage.CostMicroUSD)+" USD", (time.Duration(a.WallMS) * time.Millisecond).Round(100*time.Millisecond).String())
	line := strings.Join(parts, ", ")
	if a.Error != nil {
		line += ": " + a.Error.Message
	}
	if len(a.Problems) > 0 {
		line += ": " + strings.Join(a.Problems, "; ")
	}
	safe, _ := tools.Display(tools.Elide(line, 2000))
	return safe
}

// DescribeTools returns lines, safe for display, about tools that were asked for.
func DescribeTools(r *worker.ToolReport) []string {
	if r == nil {
		return nil
	}
	var lines []string
	if len(r.Rejected) > 0 {
		safe, _ := tools.Display(tools.Elide(strings.Join(r.Rejected, ", "), 1000))
		lines = append(lines, "workers can't call "+safe+"; they can call "+cmp.Or(strings.Join(r.Accepted, ", "), "nothing"))
	}
	if r.CostCap != nil && r.CostCap.OperatorPrompt != "" {
		lines = append(lines, r.CostCap.OperatorPrompt)
	}
	return lines
}

// FindAnswer returns the worker that determines the outcome of a conference: the first
// one that answered, or else the first one that is invalid, or failed.
func FindAnswer(answers []worker.Answer) worker.Answer {
	for _, status := range []worker.Status{worker.StatusAnswered, worker.StatusInvalid} {
		for _, a := range answers {
			if a.Status == status {
				return a
			}
		}
	}
	return answers[0]
}
