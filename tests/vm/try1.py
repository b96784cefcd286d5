import sys,time
sys.path.insert(0,'tests/netns/links')
from link_probes import *
from testbed.links.kinds import choose_link_kind
t=time.time()
kind=choose_link_kind(sys.argv[1],[]); print(kind.name, 'chosen', time.time()-t)
def show(tag,r,base):
    d=delays_ns(r); print(tag,len(d),'err ms min %.3f p50 %.3f p90 %.3f p99 %.3f max %.3f'%tuple((d[int(q*(len(d)-1))]-base)/1e6 for q in (0,.5,.9,.99,1)))
nodes={n:Node(n) for n in 'ab'}
pids={n:x.pid for n,x in nodes.items()}
def go(dirn, f):
    t=time.time()
    run=kind.build([link('a','b',dirn)],pids,'x'); tb=time.time()-t
    a,b=Port(nodes['a'],'to-b'),Port(nodes['b'],'to-a')
    try: f(run,a,b)
    finally:
        t=time.time(); c=run.counters()['a','b']; tc=time.time()-t
        print('   ',c,run.warnings); t=time.time(); run.close(); print('    build %.2f counters %.2f close %.2f'%(tb,tc,time.time()-t)); print(nodes['a'].interfaces())
def delay(run,a,b):
    th=send_in_thread(a,200,every_s=.01); r=b.receive(1,200); th.join(); show('delay 30',r,30e6+60*8e3/100)
go(direction(30,100),delay)
def rate(run,a,b):
    th=send_in_thread(a,200,LARGEST); r=b.receive(1,200); th.join()
    took=r[-1].received_ns-r[0].received_ns; print('rate',len(r),took/1e6,'ms; asked',199*LARGEST*8/5e3, 'ms')
    first=r[0].sent_ns+30e6
    e=sorted(x.received_ns-(first+(i+1)*LARGEST*8e9/5e6) for i,x in enumerate(r)); print('  err ms',[round(e[int(q*199)]/1e6,3) for q in (0,.5,.9,1)])
go(direction(30,5),rate)
def queue(size):
    def q(run,a,b):
        t=time.time()
        for i in range(100): a.send(i,size)
        t=time.time()-t
        r=b.receive(1.0); print('queue',size,len(r),'sent in',t)
    return q
go(direction(5,1,20*LARGEST),queue(LARGEST))
go(direction(5,.1,20000),queue(1000))
go(direction(5,.1,0),queue(LARGEST))
def loss(run,a,b):
    for i in range(3000): a.send(i)
    print('loss', 3000-len(b.receive(.5)))
go(direction(1,100,loss=.1),loss)
