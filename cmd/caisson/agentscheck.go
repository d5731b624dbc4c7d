package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/agents"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
	"github.com/caisson-run/caisson/sandbox"
)

type checkedAgent struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// Works is set if the agent showed the mock's answer and ended with status 0.
	Works bool `json:"works"`
	// Problem says why not. Output is the end of the agent's output then.
	Problem string  `json:"problem,omitempty"`
	Output  string  `json:"output,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

func newAgentsCheckCommand(a *app) *cobra.Command {
	var f struct {
		profileFlag
		JSON     bool        `flag:"json" doc:"write a JSON array"`
		Settings config.File `groups:"image,backend,isolation"`
	}
	return newCommand(&cobra.Command{
		Use: "check [flags] [NAME...]", Short: "Run agents in a sandbox, with a mock for their model",
		Long: `Run agents in a sandbox, as caisson exec --agent does but in an empty workspace and with a mock for their
model, which answers with a random word. An agent works if it shows that word and ends with status 0. No
key is needed, and no model is asked. Without names, the installed agents are checked.
`,
		Example: "  caisson agents check\n  caisson agents check claude --image node:24",
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := checkAgents(cmd.Context(), a, workspaceFlags{profileFlag: f.profileFlag, Settings: f.Settings}, args)
			if err != nil {
				return err
			}
			err = showTable(a, f.JSON, list, table[checkedAgent]{
				titles: []string{"AGENT", "VERSION", "RESULT"},
				cells: func(one checkedAgent) []string {
					result := fmt.Sprintf("works, %.1f s", one.Seconds)
					if !one.Works {
						result = one.Problem
						if one.Output != "" {
							result += ": " + one.Output
						}
					}
					return []string{one.Name, cmp.Or(one.Version, "-"), result}
				},
				none: "No agent is installed. caisson agents install NAME installs one.",
			})
			for _, one := range list {
				if err == nil && !one.Works {
					err = exitWith(exitFailed)
				}
			}
			return err
		},
	}, &f, usesConfig|startsSandbox|interruptible, statuses{exitFailed: "an agent does not work"})
}

// checkTime bounds the run of one agent. The slowest takes seconds.
const checkTime = 3 * time.Minute

// checkAgents checks the agents with the given names, or the installed ones.
func checkAgents(ctx context.Context, a *app, f workspaceFlags, names []string) ([]checkedAgent, error) {
	s, err := loadSettings(a, f.Settings, f.Profile)
	if err != nil {
		return nil, err
	}
	installed := len(names) == 0
	if installed {
		names = s.conf.AgentNames()
	}
	finder := s.agentFinder(resolvePath(".")) // as for a session here
	var list []checkedAgent
	for _, name := range names {
		r := &agentRun{}
		if r.Agent, err = agents.New(&s.conf, name); err != nil {
			return nil, err
		}
		r.program, err = finder.Find(r.Agent)
		switch {
		case installed && r.NPM != nil && errors.Is(err, agents.ErrNotInstalled):
			continue
		case err != nil:
			list = append(list, checkedAgent{Name: name, Problem: "missing: " + missingProgram(r.Agent, err)})
			continue
		}
		one, err := tryAgent(ctx, a, f, r)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

// tryAgent runs an agent with a mock for its model. An error is about the sandbox.
func tryAgent(ctx context.Context, a *app, f workspaceFlags, r *agentRun) (one checkedAgent, _ error) {
	word := rand.Text()
	base, stop, err := serveMock(ctx, &mockmodel.Model{Steps: []mockmodel.Step{{Text: word}}})
	if err != nil {
		return one, err
	}
	defer stop()
	dir, err := os.MkdirTemp("", "caisson-agent-")
	if err != nil {
		return one, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	f.Workspace = dir
	one.Name, one.Version = r.Name, r.program.Version
	r.models = map[string]config.SelectedModel{config.AnyModel: {
		Profile: "mock", Provider: "openai", Price: &limits.Price{}, ModelOptions: loop.ModelOptions{Model: "mock-model", BaseURL: base},
	}}
	began := time.Now()
	result, output, err := runAlone(ctx, a, f, "caisson agents check "+r.Name, r, func(o *runner.Options) (_ []runner.UserCommand, err error) {
		if o.Bridge, err = r.bridge(); err != nil {
			return nil, err
		}
		list, err := r.commands(agents.Run{Instruction: "Say hello. Use no tool.", Workspace: sandbox.Workspace{Target: o.Target}.MountPoint()})
		for i := range list {
			list[i].Timeout = checkTime
		}
		return list, err
	})
	if err != nil {
		return one, err
	}
	one.Seconds = time.Since(began).Seconds()
	one.judge(result, output, word)
	return one, nil
}

// runAlone runs the commands of prepare, which may change the session's options, until one
// fails. r is the agent that they need, or nil. It returns the result of the last one and
// the end of their output. It doesn't report changed files.
func runAlone(ctx context.Context, a *app, f workspaceFlags, task string, r *agentRun, prepare func(*runner.Options) ([]runner.UserCommand, error)) (result runner.UserResult, shown string, _ error) {
	s, err := openSessionBuilder(a, f)
	if err != nil {
		return result, "", err
	}
	defer s.close()
	s.orders = true
	var quiet []string
	if r != nil {
		s.addAgent(r)
		quiet = r.QuietHosts
	}
	u := newInterface(a, false)
	ctx, force, _, stop := a.handleInterrupts(ctx, u.printNotice)
	defer stop()
	defer u.close(ctx)
	o, err := s.modelessOptions(ctx, task, u)
	if err != nil {
		return result, "", err
	}
	commands, err := prepare(&o)
	if err != nil {
		return result, "", err
	}
	u.observe(&o, force, quiet...)
	session, err := runner.Open(ctx, o)
	if err != nil {
		return result, "", cmp.Or(interruption(ctx), err)
	}
	output := &limits.Tail{Size: 4 << 10}
	for i := range commands {
		commands[i].Stdout, commands[i].Stderr = output, output
	}
	result, err = execAll(ctx, session, commands)
	session.Close()
	u.showEnd(ctx, runner.Report{})
	if err != nil || ctx.Err() != nil {
		return result, "", cmp.Or(interruption(ctx), err, context.Cause(ctx))
	}
	return result, strings.TrimSpace(output.String()), nil
}

// judge sets the result of a run.
func (c *checkedAgent) judge(result runner.UserResult, output, word string) {
	switch status := result.Status; {
	case status.Cause() != "":
		c.Problem = "it was ended: " + status.Cause()
	case status.Signal != 0:
		c.Problem = fmt.Sprintf("it ended by signal %d", status.Signal)
	case status.Code == exitNoProgram:
		c.Problem = "the image lacks a program that it needs"
	case status.Code != 0:
		c.Problem = fmt.Sprintf("it ended with exit status %d", status.Code)
	case !strings.Contains(output, word):
		c.Problem = "it did not show the mock's answer"
	default:
		c.Works = true
		return
	}
	c.Output = output
}

// serveMock serves a mock on a loopback address, whose base URL it returns, until stop.
func serveMock(ctx context.Context, m *mockmodel.Model) (base string, stop func(), err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // it ends with an error
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}
