package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

const checkMCP = "mcp"

// Server is a configured MCP server.
type Server struct {
	Name string
	// OnHost reports that it runs on this machine, outside the sandbox. Address
	// is its address if it is reached without TLS over a network, otherwise "".
	OnHost  bool
	Address string
	// Readable lists the keys of its secrets that are in plain text in File,
	// which other users can read.
	Readable []string
	File     string
	// Failure is why it did not start, or "". Offered maps the names of its
	// tools to the hashes of their definitions; it is nil if the server was not
	// started.
	Failure string
	Offered map[tools.Name]string
}

func (c Policy) serverNames() []string {
	var names []string
	for _, s := range c.Servers {
		names = append(names, s.Name)
	}
	return names
}

func (c Policy) checkServers() []Finding {
	if len(c.Servers) == 0 {
		return nil
	}
	findings := []Finding{{Check: checkMCP, Result: OK, Detail: strings.Join(c.serverNames(), ", ")}}
	warn := func(hint, format string, args ...any) {
		findings = append(findings, Finding{Check: checkMCP, Result: Warning, Detail: fmt.Sprintf(format, args...), Hint: hint})
	}
	for _, s := range c.Servers {
		all, single := serverRules(c.Policy, s.Name)
		switch {
		case all == "" && single == 0:
			warn(fmt.Sprintf("Add %s/* to policy.tools, and the names of tools that may run without asking.", s.Name),
				"no rule covers the tools of %s: each call prompts, and is refused if nobody answers", s.Name)
		case all == policy.ModeAuto:
			warn("Name the tools that may run in policy.tools, and let the others prompt.",
				"every tool of %s runs without asking, including tools that it adds later", s.Name)
		}
		if s.OnHost {
			warn("Take on_host out, so that it runs in the sandbox.", "%s runs on this machine with your rights, outside the sandbox", s.Name)
		}
		if s.Address != "" {
			warn("Use https:// in its url.", "%s is reached without TLS at %s: anyone in between can read its headers and change its answers", s.Name, s.Address)
		}
		if len(s.Readable) > 0 {
			warn("chmod 600 "+s.File+", or write ${NAME} for a variable.", "other users can read %s in %s", strings.Join(s.Readable, ", "), s.File)
		}
		if s.Failure != "" {
			warn("", "%s does not start: %s", s.Name, s.Failure)
		}
	}
	return append(findings, c.checkDefinitions()...)
}

// serverRules returns the mode of the rule for all tools of a server, or "",
// and the number of rules for single tools.
func serverRules(p policy.Policy, server string) (all policy.Mode, single int) {
	for _, key := range slices.Sorted(maps.Keys(p.Tools)) {
		switch of, tool := policy.SplitKey(key); {
		case of != server:
		case tool == "*":
			all = p.Tools[key]
		default:
			single++
		}
	}
	return all, single
}

// checkDefinitions returns warnings about approvals of tools whose definition
// has changed since, or that are no longer offered.
func (c Policy) checkDefinitions() []Finding {
	list, err := c.Grants.List()
	if err != nil {
		return nil // checkGrants reports it
	}
	var findings []Finding
	for _, g := range list {
		i := slices.IndexFunc(c.Servers, func(s Server) bool { return s.Name == g.Tool.Server() && s.Offered != nil })
		if i < 0 || g.Decision != approval.DecisionAllow {
			continue
		}
		hash, offered := c.Servers[i].Offered[g.Tool]
		f := Finding{Check: checkMCP, Result: Warning, Advice: AdviseRevokeTool, Subject: string(g.Tool)}
		switch {
		case !offered:
			f.Detail = fmt.Sprintf("%s was approved in %s, and its server does not offer it", g.Tool, g.Workspace)
		case g.Definition != hash:
			f.Detail = fmt.Sprintf("the definition of %s has changed since it was approved in %s: the next call asks again", g.Tool, g.Workspace)
		default:
			continue
		}
		findings = append(findings, f)
	}
	return findings
}
