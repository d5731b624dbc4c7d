package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Conn is a NATS connection. The caller of [Connect] closes it.
type Conn = nats.Conn

// ErrServer is the error for an invalid server URL. It repeats no part of the URL,
// which may contain a password.
var ErrServer = errors.New("invalid URL of a NATS server: want nats://HOST:PORT or tls://HOST:PORT and nothing after it; special characters in a password must be percent-encoded")

// Connect connects to a NATS server or cluster, whose URLs are separated by commas.
// URLs may have a user and password, or a token as the user. Credentials is the path of
// a credentials file or of a user's key seed (nkey), or "". Servers' certificates are
// checked with the system's roots. Errors and reports contain no secrets.
//
// A lost connection is retried until it is closed, even while the servers refuse the
// user. Report is told of the connection's state, on other goroutines.
func Connect(urls, credentials, name string, report func(text string)) (*Conn, error) {
	if err := checkServers(urls); err != nil {
		return nil, err
	}
	report = limitReports(report)
	o := []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.Timeout(requestTime), nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				report(fmt.Sprintf("the connection to NATS is lost: %v", err))
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			report(fmt.Sprintf("NATS can't be reached, which is tried again: %v", err))
		}),
		nats.ReconnectHandler(func(*nats.Conn) { report("connected to NATS again") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { // requests return their own errors
			for _, refusal := range []error{nats.ErrPermissionViolation, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
				if errors.Is(err, refusal) {
					report(fmt.Sprintf("NATS refuses: %v", err))
				}
			}
		}),
	}
	if credentials != "" {
		option, err := useCredentials(credentials)
		if err != nil {
			return nil, err
		}
		o = append(o, option)
	}
	c, err := nats.Connect(urls, o...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return c, nil
}

func checkServers(urls string) error {
	for s := range strings.SplitSeq(urls, ",") {
		s = strings.TrimSpace(s)
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return ErrServer
		}
	}
	return nil
}

func useCredentials(path string) (nats.Option, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(text, []byte("NATS USER JWT")) {
		return nats.UserCredentials(path), nil // read again for each connection, so that it can be replaced
	}
	option, err := nats.NkeyOptionFromSeed(path)
	if err != nil {
		return nil, fmt.Errorf("%s has neither credentials of a user nor the seed of a key: %w", path, err)
	}
	return option, nil
}

// reportAgain is how long a text is not repeated. maxReported bounds the remembered
// texts.
const (
	reportAgain = time.Minute
	maxReported = 100
)

// limitReports returns a function that passes each text to report at most once a
// minute, so that retries every second don't fill a log. It is safe for concurrent use.
func limitReports(report func(text string)) func(text string) {
	var mu sync.Mutex
	last := map[string]time.Time{}
	return func(text string) {
		mu.Lock()
		at, known := last[text]
		again := known && time.Since(at) < reportAgain
		if !again {
			if len(last) >= maxReported {
				clear(last)
			}
			last[text] = time.Now()
		}
		mu.Unlock()
		if !again && report != nil {
			report(text)
		}
	}
}

// reportFault reports a fault, unless ctx has ended, which causes faults.
func reportFault(ctx context.Context, report func(text string), format string, args ...any) {
	if ctx.Err() == nil {
		report(fmt.Sprintf(format, args...))
	}
}
