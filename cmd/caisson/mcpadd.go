package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/mcpclients"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
	"github.com/caisson-run/caisson/tools/safeurl"
)

type mcpAddFlags struct {
	List      bool   `flag:"list" doc:"list the clients and their files"`
	Workspace string `flag:"workspace" default:"." doc:"directory to work in; the project of clients that are configured in it"`
	Name      string `flag:"name" default:"caisson" doc:"name of the server in the client"`
	Write     bool   `flag:"write" doc:"write the file"`
	JSON      bool   `flag:"json" doc:"with --list: write JSON"`
}

func newMCPAddCommand(a *app) *cobra.Command {
	var f mcpAddFlags
	return newCommand(&cobra.Command{
		Use: "add-to CLIENT [flags] [-- ARGUMENTS...]", Short: "Print or write the configuration of a client for caisson mcp",
		Long: `Print the configuration with which an MCP client starts caisson mcp on a workspace, and the file where it
belongs. ARGUMENTS are further flags of caisson mcp.

With --write, add it to the file: the command shows the change, asks you if it runs on a terminal, and
keeps the old file beside it with .bak at its end. Nothing else in the file changes. A JSON file with
comments is not changed, nor one in which the name belongs to another server.
`,
		Example: `  caisson mcp add-to --list
  caisson mcp add-to claude-code
  caisson mcp add-to cursor --workspace ~/src/project --write -- --mode overlay --egress-preset npm`,
		RunE: func(_ *cobra.Command, args []string) error {
			if f.List {
				return listMCPClients(a, f)
			}
			if len(args) == 0 {
				return newUsageError("name a client: %s", strings.Join(clientNames(), ", "))
			}
			return addToClient(a, f, args[0], args[1:])
		},
	}, &f, usesInput, statuses{exitFailed: "the file was not written: it can't be extended, or the answer was no"})
}

func clientNames() []string {
	var names []string
	for _, c := range mcpclients.All() {
		names = append(names, c.Name)
	}
	return names
}

func clientPlaces(a *app, project string) (mcpclients.Places, error) {
	home := a.environ.home()
	if home == "" {
		return mcpclients.Places{}, newFailure(exitInput, nil, "HOME is not an absolute path", "Set HOME.")
	}
	return mcpclients.Places{
		Home: home, Project: project,
		ConfigHome: cmp.Or(absoluteOrEmpty(a.environ.get("XDG_CONFIG_HOME")), filepath.Join(home, ".config")),
		CodexHome:  cmp.Or(absoluteOrEmpty(a.environ.get("CODEX_HOME")), filepath.Join(home, ".codex")),
	}, nil
}

func listMCPClients(a *app, f mcpAddFlags) error {
	project, err := filepath.Abs(f.Workspace)
	if err != nil {
		return err
	}
	places, err := clientPlaces(a, project)
	if err != nil {
		return err
	}
	list := []listedClient{}
	for _, c := range mcpclients.All() {
		l := listedClient{Name: c.Name, Title: c.Title, File: c.File(places)}
		_, err := os.Stat(l.File)
		l.Exists = err == nil
		list = append(list, l)
	}
	return showTable(a, f.JSON, list, table[listedClient]{titles: []string{"CLIENT", "FILE", "IS THERE"}, cells: func(l listedClient) []string {
		return []string{l.Name, l.File, map[bool]string{true: "yes", false: "no"}[l.Exists]}
	}})
}

type listedClient struct {
	Name   string `json:"name"`
	Title  string `json:"title"`
	File   string `json:"file"`
	Exists bool   `json:"exists"`
}

const maxClientFile = 4 << 20

func addToClient(a *app, f mcpAddFlags, client string, more []string) error {
	c, ok := mcpclients.Find(client)
	if !ok {
		return newUsageError("there is no client %q; there are %s", client, strings.Join(clientNames(), ", "))
	}
	w, err := workspaceFor(a.environ, f.Workspace)
	if err != nil {
		return err
	}
	project := w.Path
	_ = w.Close() // only its path is needed
	places, err := clientPlaces(a, project)
	if err != nil {
		return err
	}
	program, err := a.executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	server := mcpclients.Server{Name: f.Name, Command: program, Args: []string{"mcp"}}
	if named := c.Workspace(project); named != "" {
		server.Args = append(server.Args, "--workspace", named)
	}
	server.Args = append(server.Args, more...)
	path := c.File(places)
	within, err := filepath.Rel(project, path)
	inProject := err == nil && filepath.IsLocal(within)
	if real, err := filepath.EvalSymlinks(path); err == nil && !inProject {
		path = real // keep the symlink
	}
	if !f.Write {
		text, err := c.Snippet(server)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stderr, "%s reads this from %s. Add it to what is there:\n", c.Title, makeSafe(path))
		if c.Note != "" {
			fmt.Fprintln(a.stderr, c.Note)
		}
		_, err = fmt.Fprint(a.stdout, withNewline(text))
		return err
	}
	dir := project
	if !inProject {
		dir = nearestDir(path)
	}
	return writeToClient(a, c, server, dir, path)
}

// nearestDir returns the nearest existing directory above a file.
func nearestDir(path string) string {
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); err != nil && dir != filepath.Dir(dir) {
		return nearestDir(dir)
	}
	return dir
}

// openWithoutLinks opens a directory. It refuses a symlink in name, relative to it: the
// agent's commands could have made one.
func openWithoutLinks(dir, name string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	for at := name; at != "."; at = filepath.Dir(at) {
		if info, err := root.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, errors.Join(fmt.Errorf("%s is a symlink", filepath.Join(dir, at)), root.Close())
		}
	}
	return root, nil
}

// writeToClient shows the change to a client's file and makes it if the user agrees.
// The file is below dir. It reads and writes nothing outside dir.
func writeToClient(a *app, c mcpclients.Client, server mcpclients.Server, dir, path string) error {
	const byHand = "Add the server by hand."
	refused := func(cause, hint string, err error) error {
		if err != nil {
			cause += ": " + err.Error()
		}
		return newFailure(exitFailed, err, cause, hint)
	}
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	root, err := openWithoutLinks(dir, name)
	if err != nil {
		return refused("the file can't be written", byHand, err)
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(name)
	mode := fs.FileMode(0o644)
	var before []byte
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return refused("the file can't be read", byHand, err)
	case !info.Mode().IsRegular() || info.Size() > maxClientFile:
		return refused(path+" is not a regular file of at most 4 MiB", byHand, nil)
	default:
		mode = info.Mode().Perm()
		if before, err = root.ReadFile(name); err != nil {
			return refused("the file can't be read", byHand, err)
		}
	}
	after, err := c.Add(before, server)
	switch {
	case errors.Is(err, mcpclients.ErrPresent):
		a.warn("nothing to do: it is in " + path)
		return nil
	case errors.Is(err, mcpclients.ErrOther):
		return refused(fmt.Sprintf("%s has another server %q", path, server.Name), "Choose another --name, or change that server by hand.", nil)
	case err != nil:
		return refused(path, "Add by hand what caisson mcp add-to prints without --write.", err)
	}
	diff, _ := tools.DisplayLines(udiff.Unified(path, path, string(before), string(after)))
	fmt.Fprint(a.stderr, diff)
	if a.terminal(a.stdin) && a.terminal(a.stderr) && !askYes(a, bufio.NewReader(a.stdin), "Write it to "+path+"?") {
		return refused("nothing was written", "", nil)
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return refused("the directory can't be made", byHand, err)
	}
	if before != nil {
		if _, err := writeBeside(root, name+".bak", before, mode); err != nil {
			return refused("the old file can't be kept", byHand, err)
		}
	}
	written, err := writeBeside(root, name+".new", after, mode)
	if err == nil {
		err = root.Rename(written, name)
	}
	if err != nil {
		return refused("the file can't be written", byHand, err)
	}
	a.warn("written to " + path)
	if c.Note != "" {
		fmt.Fprintln(a.stderr, c.Note)
	}
	return nil
}

// writeBeside writes a new file and returns its name: name, or the first free one with
// a number appended.
func writeBeside(root *os.Root, name string, text []byte, mode fs.FileMode) (string, error) {
	for i := range 1000 {
		free := name
		if i > 0 {
			free = fmt.Sprintf("%s.%d", name, i)
		}
		f, err := root.OpenFile(free, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = f.Write(text)
		return free, errors.Join(err, f.Chmod(mode), f.Close())
	}
	return "", fmt.Errorf("%s and %s.1 to %[1]s.999 exist already: remove those that you don't need", name, name)
}

const loginTime = 10 * time.Minute

func newMCPLoginCommand(a *app) *cobra.Command {
	var f struct {
		Port           uint16 `flag:"port" doc:"port of 127.0.0.1 that the browser comes back to (default: any)"`
		workspaceFlags `groups:"Task"`
	}
	return newCommand(&cobra.Command{
		Use: "login NAME [flags]", Short: "Sign in to an MCP server over HTTP", Args: wantArgs(1, 1, "the name of a server"),
		Long: `Sign in to an MCP server over HTTP (OAuth), so that sessions can use it. The command prints the address of
a page: open it in a browser on this machine. The browser returns to a port of 127.0.0.1, and Caisson
stores the token in the state directory, for this server and its url alone. Sessions use and refresh it.

Requests follow the rules of the server: its authorization server must be at the origin of url, or in
egress.allow of the server. To sign in on another machine, forward the port to it with
ssh -L 8719:127.0.0.1:8719, and use --port 8719.
`,
		Example: "  caisson mcp login tracker",
		RunE: func(cmd *cobra.Command, args []string) error {
			return loginToServer(cmd.Context(), a, f.workspaceFlags, args[0], int(f.Port))
		},
	}, &f, usesConfig|usesInput|interruptible, statuses{exitFailed: "there is no token: the server or its authorization server refused, or nobody signed in"})
}

func loginToServer(ctx context.Context, a *app, f workspaceFlags, name string, port int) error {
	s, err := loadSettingsFor(a, f.Settings, f.Profile, f.Workspace, f.projectOptions)
	if err != nil {
		return err
	}
	if err := s.selectServer(name); err != nil {
		return err
	}
	server, err := s.conf.ServerOptions(name, sandbox.WorkspaceDir, "")
	if err != nil {
		return err
	}
	state, err := findState(a.environ)
	if err != nil {
		return err
	}
	cause, hint := "", ""
	switch in := s.conf.MCP[name]; {
	case in.Transport() != config.MCPHTTP:
		cause, hint = name+" is not a server of type http", "Servers with a command get keys by env or egress.secrets, servers of type sse by headers."
	case in.HasAuthorization():
		cause, hint = name+" has Authorization in headers, which is used as it is", "Remove it from the configuration to sign in."
	case server.OAuth.Grant == oauth.GrantClient:
		cause, hint = name+" uses client_credentials, which need no signing in", "caisson mcp test "+name+" shows whether they work."
	}
	if cause != "" {
		return newFailure(exitInput, nil, cause, hint)
	}
	ctx, stop := stopOnSignal(ctx, a)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, loginTime, errors.New("nobody signed in within "+loginTime.String()))
	defer cancel()
	err = obtainToken(ctx, oauth.LoginOptions{
		Server: oauth.Server{Name: name, URL: server.URL, Config: server.OAuth, Store: tokenStore(state)}, Port: port,
		Show: func(address, issuer string) {
			_, _ = fmt.Fprintf(a.stdout, "%s will issue a token, and %s (%s) will get it.\nOpen this address in a browser on this machine, and sign in:\n\n  %s\n\n",
				issuer, name, safeurl.String(server.URL), makeSafe(address))
		},
	}, server.Egress)
	switch {
	case err == nil:
		return a.say("Signed in to %s. caisson mcp test %s lists its tools.", name, name)
	case errors.Is(err, oauth.ErrNotNeeded):
		return a.say("%s asks for no token: there is no need to sign in.", name)
	}
	return cmp.Or(interruption(ctx), loginError(name, err))
}

func loginError(name string, err error) error {
	hint := ""
	if denied, ok := errors.AsType[*loginDeniedError](err); ok {
		hint = fmt.Sprintf("If %s is right, add it to the server: egress: {allow: [{url: \"%s/\", methods: [GET, POST]}]}.", denied.Host, denied.Origin())
	}
	return newFailure(exitFailed, err, "can't sign in to "+name+": "+err.Error(), hint)
}

func newMCPLogoutCommand(a *app) *cobra.Command {
	return newCommand(&cobra.Command{
		Use: "logout NAME", Short: "Remove the token of an MCP server", Args: wantArgs(1, 1, "the name of a server"),
		Long: `Remove the tokens of an MCP server from this machine. The authorization server is not told: withdraw the
access there too if others may know the tokens.
`,
		Example: "  caisson mcp logout tracker",
		RunE: func(cmd *cobra.Command, args []string) error {
			state, err := findState(a.environ)
			if err != nil {
				return err
			}
			had, err := tokenStore(state).Remove(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case had:
				return a.say("The token of %s is removed.", args[0])
			}
			return a.say("There is no token of %s.", args[0])
		},
	}, nil, usesInput, nil)
}
