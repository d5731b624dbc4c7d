package guest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestRequest checks the request for a command, with the defaults, and the
// largest accepted one. One byte more is invalid.
func TestRequest(t *testing.T) {
	o := Options{Config: wire.Config{Workspace: sandbox.WorkspaceDir}, Env: []string{"PWD=/workspace", "A=PWD="}, Timeout: time.Hour, Grace: time.Minute}
	base := wire.Exec{
		Argv: [][]byte{[]byte("x")}, Env: [][]byte{[]byte("PWD=/workspace"), []byte("A=PWD=")}, Dir: []byte{},
		Live: sandbox.DefaultLiveBytes, Tail: sandbox.DefaultTailBytes, Timeout: time.Hour, Grace: time.Minute,
	}
	argument := strings.Repeat("x", maxArgument)
	// With their ends they are exactly maxArguments.
	arguments := slices.Repeat([]string{argument[1:]}, 20)
	arguments[19] = argument[len(argument)-(maxArguments-19*maxArgument-1):]
	dir := "/workspace/" + strings.Repeat("x", maxDir-len("/workspace/"))
	for name, tt := range map[string]struct {
		cmd    sandbox.Command
		want   func(*wire.Exec)
		beyond func(*sandbox.Command) // makes it invalid
	}{
		"defaults": {beyond: func(c *sandbox.Command) { c.Argv = []string{""} }},
		"all of its own": {
			cmd: sandbox.Command{
				Argv: []string{"a", ""}, Env: []string{"B="}, Dir: "/workspace//d/e", NoLinks: true, Stdin: strings.NewReader(""),
				Timeout: 1, Grace: 2, Output: sandbox.OutputLimits{Live: 3, Tail: 4},
			},
			want: func(x *wire.Exec) {
				*x = wire.Exec{
					Argv: [][]byte{[]byte("a"), {}}, Env: [][]byte{[]byte("B=")}, Dir: []byte("d/e"), NoLinks: true, Stdin: true,
					Timeout: 1, Grace: 2, Live: 3, Tail: 4,
				}
			},
			beyond: func(c *sandbox.Command) { c.Env[0] = "=B" },
		},
		"the workspace": {
			cmd:    sandbox.Command{Dir: "/workspace"},
			beyond: func(c *sandbox.Command) { c.Dir += "x" },
		},
		"a directory": {
			cmd: sandbox.Command{Dir: "/workspace/d"},
			want: func(x *wire.Exec) {
				x.Dir, x.Env[0] = []byte("d"), []byte("PWD=/workspace/d")
			},
			beyond: func(c *sandbox.Command) { c.Dir += "\x00" },
		},
		"another identity": {
			cmd: sandbox.Command{Identity: sandbox.MaxIdentity},
			want: func(x *wire.Exec) {
				x.Identity = sandbox.MaxIdentity
				x.Env = texts([]string{
					"PWD=/run/identity/15/home", "A=PWD=", "USER=identity15", "LOGNAME=identity15", "HOME=/run/identity/15/home", "TMPDIR=/run/identity/15/tmp",
				})
			},
			beyond: func(c *sandbox.Command) { c.Identity++ },
		},
		"another identity in the workspace": {
			cmd:    sandbox.Command{Identity: 1, Dir: "/workspace", Env: []string{}},
			want:   func(x *wire.Exec) { x.Identity, x.Dir, x.Env = 1, []byte("."), [][]byte{} },
			beyond: func(c *sandbox.Command) { c.Identity = -1 },
		},
		"directory with a NUL": {
			cmd:    sandbox.Command{Env: []string{}}, // none that holds the directory too
			want:   func(x *wire.Exec) { x.Env = [][]byte{} },
			beyond: func(c *sandbox.Command) { c.Dir = "/workspace/\x00" },
		},
		"no environment": {
			cmd:    sandbox.Command{Env: []string{}},
			want:   func(x *wire.Exec) { x.Env = [][]byte{} },
			beyond: func(c *sandbox.Command) { c.Env = []string{"B"} },
		},
		"longest argument": {
			cmd:    sandbox.Command{Argv: []string{argument}},
			want:   func(x *wire.Exec) { x.Argv = [][]byte{[]byte(argument)} },
			beyond: func(c *sandbox.Command) { c.Argv[0] += "x" },
		},
		"longest arguments": {
			cmd: sandbox.Command{Argv: arguments[:18], Env: []string{"A=" + arguments[18][2:], "B=" + arguments[19][2:]}},
			want: func(x *wire.Exec) {
				x.Argv, x.Env = texts(arguments[:18]), texts([]string{"A=" + arguments[18][2:], "B=" + arguments[19][2:]})
			},
			beyond: func(c *sandbox.Command) { c.Env[1] += "x" },
		},
		"longest directory": {
			cmd:    sandbox.Command{Dir: dir, Env: []string{}},
			want:   func(x *wire.Exec) { x.Env, x.Dir = [][]byte{}, []byte(dir[len("/workspace/"):]) },
			beyond: func(c *sandbox.Command) { c.Dir += "x" },
		},
		"longest tail": {
			cmd:    sandbox.Command{Output: sandbox.OutputLimits{Tail: wire.MaxTail}},
			want:   func(x *wire.Exec) { x.Tail = wire.MaxTail },
			beyond: func(c *sandbox.Command) { c.Output.Tail++ },
		},
		"negative tail":    {beyond: func(c *sandbox.Command) { c.Output.Tail = -1 }},
		"negative live":    {beyond: func(c *sandbox.Command) { c.Output.Live = -1 }},
		"negative timeout": {beyond: func(c *sandbox.Command) { c.Timeout = -1 }},
		"negative grace":   {beyond: func(c *sandbox.Command) { c.Grace = -1 }},
		"NUL at the start": {beyond: func(c *sandbox.Command) { c.Argv[0] = "\x00x" }},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.cmd.Argv == nil {
				tt.cmd.Argv = []string{"x"}
			}
			want := base
			want.Env = slices.Clone(base.Env)
			if tt.want != nil {
				tt.want(&want)
			}
			got, err := o.newRequest(tt.cmd, 0)
			if !reflect.DeepEqual(got, want) || err != nil { // cmp takes seconds for so many bytes
				t.Errorf("%v, request (-want +got):\n%.1000s", err, cmp.Diff(want, got))
			}
			tt.beyond(&tt.cmd)
			if _, err := o.newRequest(tt.cmd, 0); !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("beyond it: error is %v, want one of ErrInvalid", err)
			}
		})
	}
	if got := fmt.Sprint(o.Env); got != "[PWD=/workspace A=PWD=]" {
		t.Errorf("the sandbox's environment is now %s", got)
	}
}

func texts(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}
