package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner"
)

// Role names the operations that a token allows. Roles don't include each
// other, except that RoleAdmin includes all.
type Role string

// The roles.
const (
	// RoleRead sees sandboxes, metrics, and sessions with their records, questions
	// and changes.
	RoleRead Role = "read"
	// RoleRun starts, messages, cancels and ends sessions. It starts and ends
	// sandboxes, runs commands in them, and copies files to and from them.
	RoleRun Role = "run"
	// RoleApprove answers confirmations for this call or for the session.
	RoleApprove Role = "approve"
	// RoleAdmin has the other roles, answers confirmations permanently, applies
	// and discards changes, and may use tools that require an administrator.
	RoleAdmin Role = "admin"
)

// allRoles returns all roles.
func allRoles() []Role { return []Role{RoleRead, RoleRun, RoleApprove, RoleAdmin} }

// defaultRoles returns the roles of a token without any.
func defaultRoles() []Role { return []Role{RoleRead, RoleRun} }

// Roles of routes that don't depend on the token's roles.
const (
	roleNone Role = "none" // no token is needed
	roleAny  Role = "any"  // any known token
)

// routeRoles is the role that each route requires, by its pattern. A route that
// is not in the table is never served.
var routeRoles = map[string]Role{
	"POST /sessions":                                           RoleRun,
	"GET /sessions":                                            RoleRead,
	"GET /sessions/{id}":                                       RoleRead,
	"DELETE /sessions/{id}":                                    RoleRun,
	"POST /sessions/{id}/resume":                               RoleRun,
	"POST /sessions/{id}/turns":                                RoleRun,
	"GET /sessions/{id}/turns/{turn}":                          RoleRead,
	"POST /sessions/{id}/turns/{turn}/cancel":                  RoleRun,
	"GET /sessions/{id}/confirmations":                         RoleRead,
	"GET /sessions/{id}/events":                                RoleRead,
	"GET /sessions/{id}/skills":                                RoleRead,
	"GET /sessions/{id}/skills/{name}":                         RoleRead,
	"GET /sessions/{id}/values/{name}":                         RoleRead,
	"GET /sessions/{id}/diff":                                  RoleRead,
	"GET /sessions/{id}/patch":                                 RoleRead,
	"POST /sessions/{id}/apply":                                RoleAdmin,
	"POST /sandboxes":                                          RoleRun,
	"GET /sandboxes":                                           RoleRead,
	"GET /sandboxes/{id}":                                      RoleRead,
	"DELETE /sandboxes/{id}":                                   RoleRun,
	"POST /sandboxes/{id}/exec":                                RoleRun,
	"DELETE /sandboxes/{id}/exec/{exec}":                       RoleRun,
	"GET /sandboxes/{id}/terminal":                             RoleRun,
	"PUT /sandboxes/{id}/files":                                RoleRun,
	"GET /sandboxes/{id}/files":                                RoleRun,
	"POST /signins":                                            RoleRead,
	"GET /metrics":                                             RoleRead,
	"GET /openapi.json":                                        roleAny,
	"GET /healthz":                                             roleNone,
	"POST /sessions/{id}/turns/{turn}/confirmations/{request}": RoleApprove,
}

type client struct {
	label string
	roles []Role
}

type clientKey struct{}

// clientOf returns the client that sent a request. The zero client has no role.
func clientOf(ctx context.Context) client {
	c, _ := ctx.Value(clientKey{}).(client)
	return c
}

func (c client) hasRole(r Role) bool {
	return r == roleNone || r == roleAny && len(c.roles) > 0 || slices.Contains(c.roles, r) || slices.Contains(c.roles, RoleAdmin) && slices.Contains(allRoles(), r)
}

func (c client) name() string { return "http:" + c.label }

func (c client) runnerUser() runner.User {
	return runner.User{Name: c.name(), Admin: c.hasRole(RoleAdmin)}
}

// ErrRoles reports that a token's roles can't be used.
var ErrRoles = errors.New("invalid roles")

func (c client) lacksRole(r Role) *Problem {
	var roles []string
	for _, have := range c.roles {
		roles = append(roles, string(have))
	}
	return newProblem(http.StatusForbidden, "role", fmt.Sprintf("this needs the role %s, and the token %s has %s", r, c.label, strings.Join(roles, ", ")),
		"Use a token that has it; serve.tokens in the server's configuration sets roles")
}
