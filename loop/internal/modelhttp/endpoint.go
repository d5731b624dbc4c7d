package modelhttp

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// Defaults of [loop.ModelOptions].
const (
	defaultHeaderTimeout = 10 * time.Minute // a model may have to be loaded first
	defaultIdleTimeout   = 2 * time.Minute
	defaultAnswerTimeout = time.Hour // 16,000 tokens of a slow local model
	// An answer of 128,000 tokens with one event per token has about 30 MB.
	defaultResponseBytes = 64 << 20
)

// Prepare checks o and sets the defaults of its zero fields. closeIdle closes the idle
// connections of a client that Prepare made. That client has a separate transport, so
// that this doesn't affect other users of the default one.
func Prepare(o *loop.ModelOptions, defaultURL string) (closeIdle func(), err error) {
	if o.Model == "" {
		return nil, errors.New("no model name")
	}
	o.BaseURL = cmp.Or(o.BaseURL, defaultURL)
	if err := checkBaseURL(o.BaseURL, defaultURL); err != nil {
		return nil, err
	}
	if o.HeaderTimeout < 0 || o.IdleTimeout < 0 || o.AnswerTimeout < 0 || o.MaxResponseBytes < 0 || o.MaxOutputTokens < 0 {
		return nil, errors.New("negative number")
	}
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, defaultHeaderTimeout)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
	o.AnswerTimeout = cmp.Or(o.AnswerTimeout, defaultAnswerTimeout)
	o.MaxResponseBytes = cmp.Or(o.MaxResponseBytes, defaultResponseBytes)
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	client := &http.Client{}
	closeIdle = func() {}
	if o.HTTPClient != nil {
		*client = *o.HTTPClient
	} else {
		transport, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			transport = &http.Transport{Proxy: http.ProxyFromEnvironment}
		}
		client.Transport = transport.Clone()
		closeIdle = client.CloseIdleConnections
	}
	if client.CheckRedirect == nil {
		client.CheckRedirect = checkRedirect
	}
	o.HTTPClient = client
	return closeIdle, nil
}

// checkRedirect refuses redirects away from the endpoint. The conversation, and headers
// with keys, of which the HTTP client drops only Authorization, are only for the
// configured host. A redirect to GET would lose the conversation.
func checkRedirect(next *http.Request, earlier []*http.Request) error {
	from := earlier[0]
	switch {
	case next.URL.Host != from.URL.Host || next.URL.Scheme != from.URL.Scheme:
		return fmt.Errorf("%w to %s", errRedirect, safeurl.String(next.URL.Scheme+"://"+next.URL.Host))
	case next.Method != from.Method, len(earlier) >= maxRedirects:
		return fmt.Errorf("%w with a change of the method, or too often", errRedirect)
	}
	return nil
}

var errRedirect = errors.New("endpoint redirects")

const maxRedirects = 5

// checkBaseURL returns an error unless the URL is http or https without credentials.
// example is for the message.
func checkBaseURL(text, example string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("the base URL can't be parsed") // not with the URL, which may contain a secret
	case u.User != nil:
		return errors.New("the base URL holds credentials; give them as the key")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("base URL %q is not an http or https URL, such as %s", safeurl.String(text), example)
	}
	return nil
}
