package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/fetch"
)

// deciderTime is the default of policy.decider.timeout.
const deciderTime = 30 * time.Second

// newDecider returns the configured decider, or nil if there is none. workspace is that of
// its sessions, or "" if they have different ones. Its error is a [config.Error].
func (s *settings) newDecider(workspace string) (*approval.Decider, error) {
	d, where := s.conf.PolicyDecider()
	if d == nil {
		return nil, nil
	}
	invalid := func(key, message, hint string) error {
		return &config.Error{Where: where + key, Message: message, Hint: hint}
	}
	o := approval.Decider{
		Classes: []tools.Class{tools.ClassWrite, tools.ClassExecute, tools.ClassNetwork}, Hosts: d.Hosts == nil || *d.Hosts,
		Timeout: cmp.Or(time.Duration(valueOf(d.Timeout)), deciderTime), MayAllow: valueOf(d.MayAllow), AskOnFailure: valueOf(d.OnFailure) == "ask",
	}
	if d.Classes != nil {
		o.Classes = nil
	}
	for _, class := range d.Classes {
		if !tools.Class(class).Valid() {
			return nil, invalid(".classes", fmt.Sprintf("there is no class %q", class), "choose from none, read, write, execute, network")
		}
		o.Classes = append(o.Classes, tools.Class(class))
	}
	if o.Hosts {
		o.Tools = []tools.Name{fetch.Name}
	}
	switch {
	case o.MayAllow && s.conf.Requirements.Policy != nil && s.conf.Requirements.Policy.Decider == nil:
		return nil, invalid(".may_allow", "the administrator's requirements have a policy, and this decider can't answer its questions", "leave may_allow out")
	case (len(d.Command) == 0) == (d.URL == nil):
		return nil, invalid("", "a decider has either a command or a url", "name one of them")
	case !slices.Contains([]string{"", "ask", "deny"}, valueOf(d.OnFailure)):
		return nil, invalid(".on_failure", fmt.Sprintf("%q is neither deny nor ask", *d.OnFailure), "choose one of them")
	case d.URL != nil:
		return s.newDeciderService(d, o, where, invalid)
	case len(d.Headers) > 0:
		return nil, invalid(".headers", "a command gets no headers", "leave them out")
	}
	if _, err := operatorCommand(context.Background(), s.environ, d.Command, s.writableDirs(workspace)); err != nil {
		return nil, invalid(".command", err.Error(), "name a program by its absolute path, outside of what commands can write")
	}
	o.Name = filepath.Base(d.Command[0])
	o.Ask = func(ctx context.Context, workspace string, question []byte) ([]byte, error) {
		return askProgram(ctx, s.environ, d.Command, s.writableDirs(workspace), question)
	}
	return approval.NewDecider(o), nil
}

func (s *settings) newDeciderService(d *config.Decider, o approval.Decider, where string, invalid func(key, message, hint string) error) (*approval.Decider, error) {
	address, err := url.Parse(*d.URL)
	// DNS may give any address for other names below localhost.
	if err != nil || address.Host == "" || address.User != nil || address.Scheme != "https" &&
		(address.Scheme != "http" || !isLoopback(address.Host) || strings.HasSuffix(address.Hostname(), ".localhost")) {
		return nil, invalid(".url", "not an https address, or an http address of this machine, without user and password", "put credentials into headers")
	}
	values, err := d.HeaderValues(where, s.environ.lookup)
	if err != nil {
		return nil, err
	}
	headers := http.Header{"Content-Type": {"application/json"}}
	for name, value := range values {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, invalid(".headers."+name, "not a valid header", "write it as HTTP allows")
		}
		headers.Set(name, value)
	}
	o.Name = address.Host
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.IdleConnTimeout = 30 * time.Second // each session of a server has a transport
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	o.Ask = func(ctx context.Context, _ string, question []byte) ([]byte, error) {
		return askService(ctx, client, address.String(), headers, question)
	}
	return approval.NewDecider(o), nil
}

// askProgram asks a program of the operator. It and what it started are killed if ctx
// ends. Errors contain none of its output.
func askProgram(ctx context.Context, env environ, command, writable []string, question []byte) ([]byte, error) {
	cmd, err := operatorCommand(ctx, env, command, writable)
	if err != nil {
		return nil, err
	}
	out := &limits.Head{Size: approval.MaxDecisionBytes + 1}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(question), out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return []byte(out.String()), nil
}

// askService posts a question to a service of the operator. It follows no redirects.
func askService(ctx context.Context, client *http.Client, address string, headers http.Header, question []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(question))
	if err != nil {
		return nil, errors.New("its address is invalid") // the address may have a secret
	}
	req.Header = headers.Clone()
	res, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %d %s", res.StatusCode, http.StatusText(res.StatusCode))
	}
	return io.ReadAll(io.LimitReader(res.Body, approval.MaxDecisionBytes+1))
}
