// SPDX-License-Identifier: Apache-2.0

package proxytest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// Secure says where a site with TLS listens: on one loopback port of TCP and
// UDP, for clients of HTTP/1, 2 and 3.
type Secure struct {
	t         testing.TB
	port      string
	cert, key string
}

// NewSecure makes a certificate for localhost and finds a free port.
func NewSecure(t testing.TB) *Secure {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &Secure{t: t, port: freePort(t), cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	for file, block := range map[string]*pem.Block{
		s.cert: {Type: "CERTIFICATE", Bytes: cert},
		s.key:  {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		var out bytes.Buffer
		if err := pem.Encode(&out, block); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// freePort finds a port that is free for TCP and for UDP. It lies below those
// that the system gives to whoever asks for any: between this test's look and its
// use, no other process is given it.
func freePort(t testing.TB) string {
	t.Helper()
	const least, most = 12_000, 32_000
	for range 100 {
		address := "127.0.0.1:" + strconv.Itoa(least+mathrand.IntN(most-least))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		u, err := net.ListenPacket("udp", address)
		_ = l.Close()
		if err == nil {
			_ = u.Close()
			_, port, _ := net.SplitHostPort(address)
			return port
		}
	}
	t.Fatal("no port is free for both TCP and UDP")
	return ""
}

// Site wraps the directives of a site into a block of the Caddyfile.
func (s *Secure) Site(directives string) string {
	return "https://localhost:" + s.port + " {\n\tbind 127.0.0.1\n\ttls " + s.cert + " " + s.key + "\n" + directives + "\n}\n"
}

// URL is the site's address for the clients below.
func (s *Secure) URL() string { return "https://localhost:" + s.port }

// Client gives a client that speaks the given version: "1", "2" or "3".
func (s *Secure) Client(version string) *http.Client {
	config := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}
	address := "127.0.0.1:" + s.port
	if version == "3" {
		transport := &http3.Transport{
			TLSClientConfig: config,
			Dial: func(ctx context.Context, _ string, tlsConfig *tls.Config, quicConfig *quic.Config) (*quic.Conn, error) {
				return quic.DialAddr(ctx, address, tlsConfig, quicConfig)
			},
		}
		s.t.Cleanup(func() { _ = transport.Close() })
		return &http.Client{Transport: transport}
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == "1")
	protocols.SetHTTP2(version == "2")
	transport := &http.Transport{
		TLSClientConfig:    config,
		Protocols:          protocols,
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
