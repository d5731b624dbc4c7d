package server

import (
	"fmt"
	"net/http"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
)

// Gate admits requests to a handler of another protocol as a [Server] admits its own. It is
// safe for concurrent use.
type Gate struct {
	guard *guard
	cross *http.CrossOriginProtection
}

// NewGate returns a gate for clients with tokens, each with its own label. hosts are as
// [Options].Hosts.
func NewGate(tokens []Token, hosts []string, log *zap.Logger) (*Gate, error) {
	keys, err := newKeyring(tokens)
	if err != nil {
		return nil, fmt.Errorf("new gate: %w", err)
	}
	return &Gate{guard: &guard{diagnostics: newDiagnostics(log), keys: keys, hosts: hosts}, cross: http.NewCrossOriginProtection()}, nil
}

// Admit returns the user who sends a request, which has a Host and an Origin of this server
// and a token with [RoleRun]. Otherwise it writes the response that refuses it.
func (g *Gate) Admit(w http.ResponseWriter, r *http.Request) (runner.User, bool) {
	p := g.guard.checkOrigin(r, g.cross)
	if p != nil {
		g.refuse(w, r, p)
		return runner.User{}, false
	}
	from, ok := g.guard.keys.findClient(r)
	switch {
	case !ok:
		g.refuse(w, r, unauthorized(w))
	case !from.hasRole(RoleRun):
		g.refuse(w, r, from.lacksRole(RoleRun))
	default:
		return from.runnerUser(), true
	}
	return runner.User{}, false
}

// refuse answers a request whose body is not read.
func (g *Gate) refuse(w http.ResponseWriter, r *http.Request, p *Problem) {
	g.guard.writeProblem(&response{ResponseWriter: w, unread: r.ContentLength != 0}, r, p)
}

// unauthorized returns the problem of a request without a known token, and adds its header
// to the response.
func unauthorized(w http.ResponseWriter) *Problem {
	w.Header().Set("WWW-Authenticate", `Bearer realm="caisson"`)
	return newProblem(http.StatusUnauthorized, "unauthorized", "there is no token that is known here",
		"Send it as the header Authorization: Bearer TOKEN; one in the URL does not count")
}
