package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server"
)

// maxTokenBytes bounds a token's file.
const maxTokenBytes = 4096

// tokens are those of a server. path is the file of one that was made, "" where
// the configuration has them.
type tokens struct {
	list []server.Token
	path string
	lock *flock.Flock
}

// tokens gives the configured tokens, or makes one.
func (h *serverHost) tokens() (*tokens, error) {
	conf := h.base.conf.Serve
	if len(conf.Tokens) == 0 {
		return makeToken(h.tokenPath())
	}
	values, err := conf.ServeTokens(h.environ, readToken)
	if err != nil {
		return nil, err
	}
	t := &tokens{}
	for label, value := range values {
		token := server.Token{Label: label, Value: value}
		if roles := conf.Tokens[label].Roles; roles != nil {
			token.Roles = []server.Role{}
			for _, r := range roles {
				token.Roles = append(token.Roles, server.Role(r))
			}
		}
		if err := token.Validate(); err != nil {
			hint := "make one with openssl rand -hex 32"
			if errors.Is(err, server.ErrRoles) {
				hint = "name read, run, approve or admin, or leave roles out: that is read and run"
			}
			return nil, &config.Error{Where: "serve.tokens." + label, Message: err.Error(), Mend: hint}
		}
		t.list = append(t.list, token)
	}
	return t, nil
}

func (h *serverHost) tokenPath() string {
	if h.flags.tokenFile != "" {
		return h.flags.tokenFile
	}
	return filepath.Join(h.environ.stateDir(), "serve.token")
}

func readToken(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err == nil && len(text) > maxTokenBytes {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxTokenBytes)
	}
	return text, err
}

// makeToken makes a token and writes it to a file that only its user may read.
// Two servers don't share one: the second would take the token from the first.
func makeToken(path string) (_ *tokens, err error) {
	refused := func(err error) error {
		return &runner.Error{Status: runner.ExitInput, Err: err, Problem: record.Problem{
			Cause: fmt.Sprintf("the token can't be written to %s: %v", path, err), Mend: "Name another file with --token-file, or tokens under serve in the configuration.",
		}}
	}
	t := &tokens{path: path, lock: flock.New(path+".lock", flock.SetPermissions(0o600)), list: []server.Token{server.NewToken("local", server.RoleAdmin)}}
	held, err := t.lock.TryLock()
	if err != nil {
		return nil, refused(err)
	}
	if !held {
		return nil, refused(errors.New("another caisson serve uses it"))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.lock.Close())
		}
	}()
	temp, err := os.CreateTemp(filepath.Dir(path), ".serve-token-") // 0600
	if err != nil {
		return nil, refused(err)
	}
	_, err = temp.WriteString(t.list[0].Value + "\n")
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(refused(err), os.Remove(temp.Name()))
	}
	return t, nil
}

// close removes the file of a token that was made: it opens nothing any more.
func (t *tokens) close() error {
	if t.path == "" {
		return nil
	}
	return errors.Join(os.Remove(t.path), t.lock.Close())
}
