package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/mcpclients"
	"github.com/caisson-run/caisson/cmd/caisson/internal/mcplogin"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
	"github.com/caisson-run/caisson/tools/safeurl"
)

const mcpAddLong = `Print the configuration with which an MCP client starts caisson mcp on a workspace, and the file where it
belongs. ARGUMENTS are further flags of caisson mcp.

With --write the file is extended: the change is shown, on a terminal you are asked, and the old file is
kept beside it with .bak at its end. Nothing else of the file changes. A file with comments in JSON, and
one where the name has another server, is not changed.
`

// mcpAddFlags are the flags of caisson mcp add-to.
type mcpAddFlags struct {
	workspace, name   string
	list, write, json bool
}

func newMCPAddCommand(a *app) *cobra.Command {
	var f mcpAddFlags
	cmd := &cobra.Command{
		Use:   "add-to CLIENT [flags] [-- ARGUMENTS...]",
		Short: "Print or write the configuration of a client for caisson mcp",
		Long:  mcpAddLong + exitHelp(map[int]string{exitFailed: "the file was not written: it can't be extended, or the answer was no"}, usesInput),
		Example: `  caisson mcp add-to --list
  caisson mcp add-to claude-code
  caisson mcp add-to cursor --workspace ~/src/project --write -- --mode overlay --egress-preset npm`,
		RunE: func(_ *cobra.Command, args []string) error {
			if f.list {
				return listMCPClients(a, f)
			}
			if len(args) == 0 {
				return newUsageError("name a client: %s", strings.Join(clientNames(), ", "))
			}
			return addToClient(a, f, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.list, "list", false, "list the clients and their files")
	flags.StringVar(&f.workspace, "workspace", ".", "directory that is worked on; the project of clients that are configured in it")
	flags.StringVar(&f.name, "name", "caisson", "name of the server in the client")
	flags.BoolVar(&f.write, "write", false, "write the file")
	flags.BoolVar(&f.json, "json", false, "with --list: write JSON")
	return cmd
}

func clientNames() []string {
	var names []string
	for _, c := range mcpclients.All() {
		names = append(names, c.Name)
	}
	return names
}

// clientPlaces returns where clients are configured.
func clientPlaces(a *app, project string) (mcpclients.Places, error) {
	home := a.environ.home()
	if home == "" {
		return mcpclients.Places{}, &commandError{Status: exitInput, Problem: record.Problem{Cause: "HOME is not an absolute path", Hint: "Set HOME."}}
	}
	return mcpclients.Places{
		Home: home, Project: project, OS: runtime.GOOS,
		ConfigHome: cmp.Or(absoluteOrEmpty(a.environ.get("XDG_CONFIG_HOME")), filepath.Join(home, ".config")),
		CodexHome:  cmp.Or(absoluteOrEmpty(a.environ.get("CODEX_HOME")), filepath.Join(home, ".codex")),
	}, nil
}

// listMCPClients lists the clients and their files.
func listMCPClients(a *app, f mcpAddFlags) error {
	project, err := filepath.Abs(f.workspace)
	if err != nil {
		return err
	}
	places, err := clientPlaces(a, project)
	if err != nil {
		return err
	}
	type listed struct {
		Name   string `json:"name"`
		Title  string `json:"title"`
		File   string `json:"file"`
		Exists bool   `json:"exists"`
	}
	list := []listed{}
	rows := [][]string{{"CLIENT", "FILE", "IS THERE"}}
	for _, c := range mcpclients.All() {
		l := listed{Name: c.Name, Title: c.Title, File: c.File(places)}
		_, err := os.Stat(l.File)
		l.Exists = err == nil
		list = append(list, l)
		there := "no"
		if l.Exists {
			there = "yes"
		}
		shown, _ := tools.Display(l.File)
		rows = append(rows, []string{l.Name, shown, there})
	}
	if f.json {
		return writeJSON(a.stdout, list)
	}
	return a.writeTable(rows)
}

// maxClientFile bounds the configuration of a client.
const maxClientFile = 4 << 20

// addToClient prints the configuration of a client, or writes it.
func addToClient(a *app, f mcpAddFlags, client string, more []string) error {
	c, ok := mcpclients.Find(client)
	if !ok {
		return newUsageError("there is no client %q; there are %s", client, strings.Join(clientNames(), ", "))
	}
	w, err := workspaceFor(a.environ, f.workspace)
	if err != nil {
		return err
	}
	project := w.Path
	_ = w.Close() // it was only looked for
	places, err := clientPlaces(a, project)
	if err != nil {
		return err
	}
	program, err := a.executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	server := mcpclients.Server{Name: f.name, Command: program, Args: []string{"mcp"}}
	if named := c.Workspace(project); named != "" {
		server.Args = append(server.Args, "--workspace", named)
	}
	server.Args = append(server.Args, more...)
	path := c.File(places)
	within, err := filepath.Rel(project, path)
	inProject := err == nil && filepath.IsLocal(within)
	if real, err := filepath.EvalSymlinks(path); err == nil && !inProject {
		path = real // the symlink stays
	}
	if !f.write {
		text, err := c.Snippet(server)
		if err != nil {
			return err
		}
		shown, _ := tools.Display(path)
		fmt.Fprintf(a.stderr, "%s reads this from %s, where it goes beside what is there:\n", c.Title, shown)
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

// openWithoutLinks opens a directory. It refuses a name below it with a symlink on the
// way, which commands of the agent could have made.
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

// writeToClient shows the change to a client's file, and makes it if the user wants it.
// The file is below dir, and nothing outside of dir is read or written.
func writeToClient(a *app, c mcpclients.Client, server mcpclients.Server, dir, path string) error {
	refused := func(cause, hint string, err error) error {
		return &commandError{Status: exitFailed, Err: err, Problem: record.Problem{Cause: cause, Hint: hint}}
	}
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	root, err := openWithoutLinks(dir, name)
	if err != nil {
		return refused("the file can't be written: "+err.Error(), "Add the server by hand.", err)
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(name)
	mode := fs.FileMode(0o644)
	var before []byte
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return refused("the file can't be read: "+err.Error(), "Add the server by hand.", err)
	case !info.Mode().IsRegular() || info.Size() > maxClientFile:
		return refused(path+" is no regular file of at most 4 MiB", "Add the server by hand.", nil)
	default:
		mode = info.Mode().Perm()
		if before, err = root.ReadFile(name); err != nil {
			return refused("the file can't be read: "+err.Error(), "Add the server by hand.", err)
		}
	}
	after, err := c.Add(before, server)
	switch {
	case errors.Is(err, mcpclients.ErrPresent):
		fmt.Fprintln(a.stderr, "caisson: nothing to do: it is in "+makeSafe(path))
		return nil
	case errors.Is(err, mcpclients.ErrOther):
		return refused(fmt.Sprintf("%s has another server %q", path, server.Name), "Choose another --name, or change that server by hand.", err)
	case err != nil:
		return refused(path+": "+err.Error(), "Add by hand what caisson mcp add-to prints without --write.", err)
	}
	diff, _ := tools.DisplayLines(udiff.Unified(path, path, string(before), string(after)))
	fmt.Fprint(a.stderr, diff)
	if a.terminal(a.stdin) && a.terminal(a.stderr) && !askToWrite(a, path) {
		return refused("nothing was written", "", nil)
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return refused("the directory can't be made: "+err.Error(), "Add the server by hand.", err)
	}
	if before != nil {
		if _, err := writeBeside(root, name+".bak", before, mode); err != nil {
			return refused("the old file can't be kept: "+err.Error(), "Add the server by hand.", err)
		}
	}
	written, err := writeBeside(root, name+".new", after, mode)
	if err == nil {
		err = root.Rename(written, name)
	}
	if err != nil {
		return refused("the file can't be written: "+err.Error(), "Add the server by hand.", err)
	}
	fmt.Fprintln(a.stderr, "caisson: written to "+makeSafe(path))
	if c.Note != "" {
		fmt.Fprintln(a.stderr, c.Note)
	}
	return nil
}

// writeBeside writes a new file and returns its name: the given name or, if it is taken,
// the first free one with a number appended.
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

const mcpLoginLong = `Sign in to an MCP server over HTTP (OAuth), so that sessions can use it. The address of the page is printed:
open it in a browser on this machine. The browser comes back to a port of 127.0.0.1, and the token is
stored in the state directory, for this server and its url alone. Sessions use and refresh it.

Requests are under the rules of the server: its authorization server must be at the origin of url, or
in egress.allow of the server. On another machine, forward the port to it: ssh -L 8719:127.0.0.1:8719,
and --port 8719.
`

// loginTime bounds how long a person may take to sign in.
const loginTime = 10 * time.Minute

func newMCPLoginCommand(a *app) *cobra.Command {
	var f mcpFlags
	var port int
	cmd := &cobra.Command{
		Use:     "login NAME [flags]",
		Short:   "Sign in to an MCP server over HTTP",
		Long:    mcpLoginLong + exitHelp(map[int]string{exitFailed: "there is no token: the server or its authorization server refused, or nobody signed in"}, usesConfig|usesInput|interruptible),
		Example: "  caisson mcp login tracker",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || port < 0 || port > 65535 {
				return newUsageError("mcp login takes the name of a server, and a port up to 65535")
			}
			return loginToServer(cmd.Context(), a, f, args[0], port)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().IntVar(&port, "port", 0, "port of 127.0.0.1 that the browser comes back to (default: any)")
	f.addTo(cmd, "Task")
	return cmd
}

func loginToServer(ctx context.Context, a *app, f mcpFlags, name string, port int) error {
	s, done, err := loadWorkspaceSettings(a, f.workspaceFlags)
	if err != nil {
		return err
	}
	defer done()
	if err := s.selectServer(name); err != nil {
		return err
	}
	server, err := s.conf.Servers().Options(name, sandbox.WorkspaceDir, "")
	if err != nil {
		return err
	}
	in := s.conf.MCP[name]
	problem := record.Problem{}
	switch {
	case in.Transport() != config.MCPHTTP:
		problem = record.Problem{Cause: name + " is no server of type http", Hint: "Servers with a command get keys by env or egress.secrets, servers of type sse by headers."}
	case in.HasAuthorization():
		problem = record.Problem{Cause: name + " has Authorization in headers, which is used as it is", Hint: "Take it out of the configuration to sign in."}
	case server.OAuth.Grant == oauth.GrantClient:
		problem = record.Problem{Cause: name + " uses client_credentials, which need no signing in", Hint: "caisson mcp test " + name + " shows whether they work."}
	case a.environ.stateDir() == "":
		return errNoStateDir()
	}
	if problem.Cause != "" {
		return &commandError{Status: exitInput, Problem: problem}
	}
	ctx, stop := stopOnSignal(ctx, a)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, loginTime, errors.New("nobody signed in within "+loginTime.String()))
	defer cancel()
	err = mcplogin.Run(ctx, oauth.LoginOptions{
		Server: oauth.Server{Name: name, URL: server.URL, Config: server.OAuth, Store: mcplogin.Store(a.environ.stateDir())}, Port: port,
		Show: func(address, issuer string) {
			shown, _ := tools.Display(address)
			_, _ = fmt.Fprintf(a.stdout, "%s will issue a token, and %s (%s) will get it.\nOpen this address in a browser on this machine, and sign in:\n\n  %s\n\n",
				issuer, name, safeurl.String(server.URL), shown)
		},
	}, server.Egress)
	switch {
	case err == nil:
		_, err = fmt.Fprintf(a.stdout, "Signed in to %s. caisson mcp test %s lists its tools.\n", name, name)
		return err
	case errors.Is(err, oauth.ErrNotNeeded):
		_, err = fmt.Fprintf(a.stdout, "%s asks for no token: there is no need to sign in.\n", name)
		return err
	}
	return cmp.Or(interruption(ctx), loginError(name, err))
}

// loginError returns a login that failed in words.
func loginError(name string, err error) error {
	cause, _ := tools.Display(err.Error())
	problem := record.Problem{Cause: "can't sign in to " + name + ": " + cause}
	if denied, ok := errors.AsType[*mcplogin.DeniedError](err); ok {
		problem.Hint = fmt.Sprintf("If %s is right, add it to the server: egress: {allow: [{url: \"%s/\", methods: [GET, POST]}]}.", denied.Host, denied.Origin())
	}
	return &commandError{Status: exitFailed, Problem: problem, Err: err}
}

func newMCPLogoutCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "logout NAME",
		Short: "Remove the token of an MCP server",
		Long: `Remove the tokens of an MCP server from this machine. The authorization server is not told: withdraw the
access there too if the tokens may be known to others.
` + exitHelp(nil, usesInput),
		Example: "  caisson mcp logout tracker",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return newUsageError("mcp logout takes the name of a server")
			}
			store := mcplogin.Store(a.environ.stateDir())
			if store == nil {
				return errNoStateDir()
			}
			had, err := store.Remove(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			text := "There is no token of %s.\n"
			if had {
				text = "The token of %s is removed.\n"
			}
			_, err = fmt.Fprintf(a.stdout, text, makeSafeLine(args[0]))
			return err
		},
	}
}
