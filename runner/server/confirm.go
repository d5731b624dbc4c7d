package server

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// Confirmation is a call that waits for an answer. The answer is bound to the
// input shown by InputHash.
type Confirmation struct {
	ID     string      `json:"id" doc:"128 random bits, in hex"`
	Turn   string      `json:"turn"`
	CallID string      `json:"tool_use_id"`
	Name   tools.Name  `json:"tool_name"`
	Class  tools.Class `json:"side_effects" enum:"none,read,write,execute,network"`
	Seq    int         `json:"seq" doc:"counts the questions of the session, in the order of the calls"`
	Runs   tools.Place `json:"runs" enum:"host,sandbox" doc:"where it would run"`
	// Summary, Display, Projected and Diff are safe to show anywhere; Exact is
	// the input itself.
	Summary   string           `json:"summary" doc:"the call in one line, safe to show"`
	Display   string           `json:"display" doc:"the input, safe to show, elided in the middle where it is long"`
	Exact     any              `json:"input" doc:"the input itself: never for a terminal as it is"`
	InputHash string           `json:"input_hash" doc:"hex SHA-256 of the canonical JSON of the input"`
	Projected []string         `json:"projected_modifications" nullable:"false" doc:"paths that would change, safe to show"`
	Diff      string           `json:"diff,omitempty" doc:"what would change, as a unified diff, safe to show"`
	Dangerous string           `json:"dangerous,omitempty" doc:"what of the command the policy finds dangerous, safe to show"`
	Phrase    string           `json:"phrase,omitempty" doc:"the exact command that an answer of scope always would be bound to, safe to show"`
	Elided    bool             `json:"diff_elided,omitempty" doc:"the middle of the diff is left out; input is whole"`
	Notices   []string         `json:"notices,omitempty" doc:"facts about the input that might be overlooked, such as letters that pass for others; safe to show"`
	Covers    []string         `json:"covers,omitempty" doc:"workspace files whose content the answer covers; what else a command reads is not covered"`
	Hidden    bool             `json:"hidden_characters,omitempty" doc:"the input, a path or the diff holds characters that are not seen; they are shown as escapes"`
	Changed   bool             `json:"changed,omitempty" doc:"it was asked before, and what the diff was made from has changed since"`
	Admin     bool             `json:"requires_admin,omitempty" doc:"only the role admin may allow it"`
	Scopes    []approval.Scope `json:"scopes" nullable:"false" doc:"how long an answer may hold"`
	Expires   time.Time        `json:"expires_at" doc:"when it is refused by itself"`
}

// Answer is a client's answer to a confirmation.
type Answer struct {
	Decision approval.Decision `json:"decision" enum:"allow,deny"`
	Scope    approval.Scope    `json:"scope,omitempty" enum:"once,session,always" doc:"how long it holds: this call (default), this tool for the session, or this workspace, which needs the role admin; a scope that the confirmation does not offer counts as once"`
}

// Resolution is the recorded outcome of a confirmation.
type Resolution struct {
	Confirmation string            `json:"id"`
	Turn         string            `json:"turn"`
	CallID       string            `json:"tool_use_id"`
	Decision     approval.Decision `json:"decision" enum:"allow,deny,timeout"`
	Scope        approval.Scope    `json:"scope,omitempty"`
	By           string            `json:"by" doc:"user, timeout, or cancel" example:"user"`
	Client       string            `json:"client,omitempty" doc:"the client that answered" example:"http:alice"`
}

// confirmationID matches the ID of a confirmation.
var confirmationID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{32}$`)
})

// pendingConfirmations returns the confirmations of a session that wait for an
// answer.
func (s *session) pendingConfirmations() []Confirmation {
	list := []Confirmation{}
	for _, c := range s.broker.Pending() {
		turn := s.turnOf(c.ID)
		if turn == "" {
			continue // its record is not written yet
		}
		v := Confirmation{
			ID: c.ID, Turn: turn, CallID: c.CallID, Name: c.Name, Class: c.Class, Seq: c.Seq, Runs: c.Runs, Summary: c.Summary, Display: c.Input,
			Exact: c.Exact, InputHash: c.InputHash, Projected: orEmpty(c.Projected), Diff: c.Diff, Dangerous: c.Dangerous, Phrase: c.Phrase, Elided: c.DiffElided, Notices: c.Notices, Covers: c.Covers, Hidden: c.Hidden, Changed: c.Changed, Admin: c.RequiresAdmin,
			Scopes: orEmpty(c.Scopes), Expires: c.Expires.UTC(),
		}
		list = append(list, v)
	}
	return list
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// answerConfirmation answers a confirmation in the name of a client.
func (s *session) answerConfirmation(ctx context.Context, turn, id string, a Answer, from client) (Resolution, error) {
	unknown := newProblem(http.StatusNotFound, "no_confirmation", "this turn of this session has not asked this", "GET /sessions/{id}/confirmations lists what is asked")
	asked := s.turnOf(id)
	given := approval.Answer{Decision: a.Decision, Scope: a.Scope}
	if !confirmationID().MatchString(id) || asked != "" && asked != turn {
		// The attempt is recorded. The broker bounds these records, so that a client
		// can't fill a trace.
		if err := s.broker.Misdirected(id, given, from.name()); errors.Is(err, tools.ErrRecord) {
			return Resolution{}, s.server.internalProblem("record an attempt", err)
		}
		return Resolution{}, unknown
	}
	if s.needsAdmin(id, given) && !from.hasRole(RoleAdmin) {
		if err := s.broker.Forbidden(id, given, from.name()); err != nil {
			return Resolution{}, s.server.internalProblem("record an attempt", err)
		}
		return Resolution{}, from.lacksRole(RoleAdmin)
	}
	// The answer counts even if the client leaves.
	got, err := s.broker.Answer(context.WithoutCancel(ctx), id, given, from.name())
	if late, ok := errors.AsType[*approval.ResolvedError](err); ok {
		p := newProblem(http.StatusConflict, "resolved", "it was answered before: "+string(late.Resolution.Decision)+", by "+answeredBy(late.Resolution), "That decision stands")
		p.Resolution = new(newResolution(late.Resolution, asked))
		return Resolution{}, p
	}
	switch {
	case errors.Is(err, approval.ErrUnknownConfirmation):
		return Resolution{}, unknown
	case errors.Is(err, tools.ErrRecord):
		return Resolution{}, s.server.internalProblem("record an answer: nothing was allowed", err)
	case err != nil:
		return Resolution{}, s.server.internalProblem("answer", err)
	}
	s.server.log.Info("confirmation answered", zap.String("session", s.id), zap.String("confirmation", id),
		zap.String("decision", string(got.Decision)), zap.String("client", from.label))
	return newResolution(got, asked), nil
}

// needsAdmin reports whether only an administrator may give an answer.
func (s *session) needsAdmin(id string, a approval.Answer) bool {
	if a.Scope == approval.ScopeAlways {
		return true
	}
	return a.Decision == approval.DecisionAllow && slices.ContainsFunc(s.broker.Pending(), func(c approval.Confirmation) bool {
		return c.ID == id && c.RequiresAdmin
	})
}

func answeredBy(r approval.Resolution) string {
	if r.Client != "" {
		return r.Client
	}
	return r.By
}

func newResolution(r approval.Resolution, turn string) Resolution {
	return Resolution{Confirmation: r.ConfirmationID, Turn: turn, CallID: r.CallID, Decision: r.Decision, Scope: r.Scope, By: r.By, Client: r.Client}
}
