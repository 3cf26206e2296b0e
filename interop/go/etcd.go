package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	lockpb "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
)

// One label of etcd: a session, which ends when it is closed or `ttl` seconds (10) after its
// keepalives ended. Options: `ttl`, `user`, `password`, `ca`.
//
// Verbs: `lock NAME [WAIT]`, `trylock NAME`, `unlock NAME`, `key NAME` (name and creation revision
// of the own key), `campaign NAME VALUE [WAIT]`, `proclaim NAME VALUE`, `resign NAME`, `leader NAME`,
// `server.lock NAME [WAIT]`, `server.unlock NAME` (the v3lock service of the server), `lease`,
// `close`, `orphan` (no more keepalives), `revoke`.
type etcdLabel struct {
	client     *clientv3.Client
	session    *concurrency.Session
	mutexes    map[string]*concurrency.Mutex
	elections  map[string]*concurrency.Election
	serverKeys map[string][]byte
}

func etcdClients(endpoints []string, options map[string]string) func(string) (client, error) {
	ttl := 10
	if text := options["ttl"]; text != "" {
		var err error
		if ttl, err = strconv.Atoi(text); err != nil {
			panic(err)
		}
	}
	config := clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: 10 * time.Second,
		Username:    options["user"],
		Password:    options["password"],
	}
	if path := options["ca"]; path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		config.TLS = &tls.Config{RootCAs: pool}
	}
	etcd, err := clientv3.New(config)
	if err != nil {
		panic(err)
	}
	return func(label string) (client, error) {
		session, err := concurrency.NewSession(etcd, concurrency.WithTTL(ttl))
		if err != nil {
			return nil, err
		}
		go func() {
			<-session.Done()
			say("0", label, "session done")
		}()
		return &etcdLabel{
			client:     etcd,
			session:    session,
			mutexes:    map[string]*concurrency.Mutex{},
			elections:  map[string]*concurrency.Election{},
			serverKeys: map[string][]byte{},
		}, nil
	}
}

func (l *etcdLabel) run(ctx context.Context, verb string, args []string) (string, error) {
	switch verb {
	case "lease":
		return fmt.Sprintf("lease %x", int64(l.session.Lease())), nil
	case "close":
		return "closed", l.session.Close()
	case "orphan":
		l.session.Orphan()
		return "orphaned", nil
	case "revoke":
		_, err := l.client.Revoke(ctx, l.session.Lease())
		return "revoked", err
	}
	if len(args) == 0 {
		return "", errors.New(verb + " needs a name")
	}
	switch verb {
	case "campaign", "proclaim", "resign", "leader":
		return l.elect(ctx, verb, args)
	case "server.lock", "server.unlock":
		return l.server(ctx, verb, args)
	default:
		return l.lock(ctx, verb, args)
	}
}

func (l *etcdLabel) lock(ctx context.Context, verb string, args []string) (string, error) {
	name := args[0]
	mutex := l.mutexes[name]
	if mutex == nil {
		mutex = concurrency.NewMutex(l.session, name)
		l.mutexes[name] = mutex
	}
	switch verb {
	case "lock":
		ctx, cancel, err := within(ctx, args, 1)
		if err != nil {
			return "", err
		}
		defer cancel()
		err = mutex.Lock(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return "refused", nil
		}
		return "locked " + mutex.Key(), err
	case "trylock":
		err := mutex.TryLock(ctx)
		if errors.Is(err, concurrency.ErrLocked) {
			return "refused", nil
		}
		return "locked " + mutex.Key(), err
	case "unlock":
		return "unlocked", mutex.Unlock(ctx)
	case "key":
		answer, err := l.client.Get(ctx, mutex.Key())
		if err != nil {
			return "", err
		}
		if len(answer.Kvs) == 0 {
			return "gone", nil
		}
		return fmt.Sprintf("key %s %d", mutex.Key(), answer.Kvs[0].CreateRevision), nil
	default:
		return "", errors.New("unknown: " + verb)
	}
}

func (l *etcdLabel) elect(ctx context.Context, verb string, args []string) (string, error) {
	name := args[0]
	election := l.elections[name]
	if election == nil {
		election = concurrency.NewElection(l.session, name)
		l.elections[name] = election
	}
	switch verb {
	case "campaign":
		ctx, cancel, err := within(ctx, args, 2)
		if err != nil {
			return "", err
		}
		defer cancel()
		err = election.Campaign(ctx, args[1])
		if errors.Is(err, context.DeadlineExceeded) {
			return "refused", nil
		}
		return fmt.Sprintf("elected %s %d", election.Key(), election.Rev()), err
	case "proclaim":
		return "proclaimed", election.Proclaim(ctx, args[1])
	case "resign":
		return "resigned", election.Resign(ctx)
	default:
		answer, err := election.Leader(ctx)
		if errors.Is(err, concurrency.ErrElectionNoLeader) {
			return "none", nil
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("leader %s %s", answer.Kvs[0].Key, answer.Kvs[0].Value), nil
	}
}

// The lock that the server itself takes for a lease.
func (l *etcdLabel) server(ctx context.Context, verb string, args []string) (string, error) {
	service := lockpb.NewLockClient(l.client.ActiveConnection())
	if verb == "server.unlock" {
		request := &lockpb.UnlockRequest{Key: l.serverKeys[args[0]]}
		_, err := service.Unlock(ctx, request)
		return "unlocked", err
	}
	ctx, cancel, err := within(ctx, args, 1)
	if err != nil {
		return "", err
	}
	defer cancel()
	request := &lockpb.LockRequest{Name: []byte(args[0]), Lease: int64(l.session.Lease())}
	answer, err := service.Lock(ctx, request)
	if err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			return "refused", nil
		}
		return "", err
	}
	l.serverKeys[args[0]] = answer.Key
	return "locked " + string(answer.Key), nil
}
