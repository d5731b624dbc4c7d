package modelhttp

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/caisson-run/caisson/tools/safeurl"
)

// CheckBaseURL returns an error unless an endpoint's URL is one of http or https
// without credentials. example is a good one, for the message.
func CheckBaseURL(text, example string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("the base URL can't be parsed") // without the URL, which may contain a secret
	case u.User != nil:
		return errors.New("the base URL holds credentials; give them as the key")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("base URL %q is not an http or https URL, such as %s", safeurl.String(text), example)
	}
	return nil
}

// NewClient returns a client with a transport of its own: closing its idle
// connections does not affect other users of the default one.
func NewClient() *http.Client {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		transport = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	return &http.Client{Transport: transport.Clone()}
}
